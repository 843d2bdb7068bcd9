#!/usr/bin/env bash
# Back-translation (Edunov et al. 2018): a model of the other direction samples sources for text of the target language;
# the verifier learns from parallel text and these pairs.
#
#   train_scripts/back_translation.sh                     Multi30k: two thirds of its pairs, and the German of the others
#   DATA=folder MONO=file train_scripts/back_translation.sh    train.en, train.de, val.*, test.*, and German text
#   MONO=file UPSAMPLE=2 train_scripts/wmt14.sh           every recipe takes MONO; UPSAMPLE repeats the parallel text
#SBATCH --job-name=back-translation --gres=gpu:1 --cpus-per-task=8 --time=06:00:00 --output=%x-%j.log --open-mode=append --signal=B:USR1@300
script=${BASH_SOURCE[0]} # Slurm runs a copy from elsewhere, and knows of which file
[ -e "$(dirname "$script")/recipe.sh" ] || [ -L "$script" ] || script=$(scontrol show job "$SLURM_JOB_ID" | sed -n 's/^ *Command=\(.*\.sh\).*/\1/p;T;q')
[ ! -L "$script" ] || script=$(realpath -- "$script")
# shellcheck source=train_scripts/recipe.sh
source "$(dirname "$script")/recipe.sh" || exit
source train_scripts/downloads.sh

: "${NAME:=back-translation.en-de}"
src=en tgt=de LANGUAGE_OF_TARGET=de
licence="captions of Multi30k (github.com/multi30k/dataset), for non-commercial research"
if [ -n "${DATA:-}" ]; then
    licence="that of the text in $DATA"
    [ -n "${MONO:-}" ] || die "MONO is missing; give a file of text in $tgt, a sentence a line"
fi
[ -n "${FROM:-}" ] || : "${MONO:=data-bin/$NAME/raw/mono.$tgt}"

# No number here comes from a paper; those of multi30k.sh, with one training instead of two.
: "${SUBWORDS:=unigram}" "${VOCABULARY:=5000}" "${BLOCK_SIZE:=10}" "${BLOCK_SIZES:=5,10}"
: "${VERIFIER_UPDATES:=7500}" "${DRAFTER_UPDATES:=4500}" "${VERIFIER_TOKENS:=2048}" "${DRAFTER_TOKENS:=1024}" "${MAX_TOKENS:=2048}"
: "${VERIFIER_LR:=0.004}" "${DRAFTER_LR:=0.001}" "${WARMUP_UPDATES:=1000}" "${SAVE_INTERVAL_UPDATES:=500}"
: "${VERIFIER_DROPOUT:=0.2}" "${DRAFTER_DROPOUT:=0.1}" "${DRAFTER_LAYERS:=4}" "${DRAFTER_OPTIONS:=--transition-rank 32}"
: "${AVERAGE:=0}" "${TEACHERS:=0}" "${DISTIL_DECODER:=greedy}"
: "${LAYERS:=4}" "${WIDTH:=128}" "${FFN_WIDTH:=256}" "${HEADS:=4}"
source train_scripts/small_models.sh

get_text() {
    from_multi30k "$1" test_2016_flickr
    tool hold-out "$1/train" "$1/other" "$1/kept" --languages "$src" "$tgt" --one-in 3
    for language in "$src" "$tgt"; do perform mv "$1/kept.$language" "$1/train.$language"; done
    perform mv "$1/other.$tgt" "$1/mono.$tgt"
    perform rm "$1/other.$src"
}

exec python -m train_scripts.runner recipe "$@"
