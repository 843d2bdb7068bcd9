#!/usr/bin/env bash
# WMT16 English to Romanian and back: the set-up of SpecDec Tables 1 and 8 and Aggressive Decoding Tables 5 and 14.
#
#   train_scripts/wmt16.sh                                      English to Romanian; downloads 0.3 GB
#   NAME=wmt16.ro-en train_scripts/wmt16.sh                     Romanian to English
#   SIZE=big train_scripts/wmt16.sh                             base, big or 12-2
#   DATA=folder train_scripts/wmt16.sh                          train.en, train.ro, valid.*, test.* of your own, raw text
#   sbatch --array=0-7 train_scripts/wmt16.sh --only decode     decode the training set in eight jobs
#SBATCH --job-name=wmt16 --gres=gpu:8 --cpus-per-task=32 --time=3-00:00:00 --output=%x-%j.log --open-mode=append --signal=B:USR1@300
script=${BASH_SOURCE[0]} # Slurm runs a copy from elsewhere, and knows of which file
[ -e "$(dirname "$script")/recipe.sh" ] || [ -L "$script" ] || script=$(scontrol show job "$SLURM_JOB_ID" | sed -n 's/^ *Command=\(.*\.sh\).*/\1/p;T;q')
[ ! -L "$script" ] || script=$(realpath -- "$script")
# shellcheck source=train_scripts/recipe.sh
source "$(dirname "$script")/recipe.sh" || exit
source train_scripts/downloads.sh

: "${NAME:=wmt16.en-ro}"
: "${DROPOUT:=0.3}" # the maximum of the papers' 0.1 to 0.3, for only 610,000 pairs
language=ro
licence="WMT16 training data (statmt.org/wmt16), see there for each corpus"
source train_scripts/wmt.sh

# The teacher: Transformer-base with raw text (SpecDec section 5.1), trained as the verifier.
teacher_options="--task translation --arch transformer_wmt_en_de --share-all-embeddings $paper_verifier --dropout $DROPOUT"

get_text() {
    # No checksums are published for the training corpora. The minimum sizes are guesses that detect an error page or a
    # truncated file. sacrebleu downloads and checks the validation set (newsdev2016) and the test set (newstest2016).
    local folder=downloads/wmt16 language side
    fetch http://data.statmt.org/wmt16/translation-task/training-parallel-ep-v8.tgz $folder/europarl-v8.tgz 100000000
    fetch https://object.pouta.csc.fi/OPUS-SETIMES/v2/moses/en-ro.txt.zip $folder/setimes.zip 10000000
    for language in ro en; do
        from_archives "$1/train.$language" "$folder/europarl-v8.tgz:training-parallel-ep-v8/europarl-v8.ro-en.$language" \
            "$folder/setimes.zip:SETIMES.en-ro.$language"
        side=src
        if [ "$language" = "$tgt" ]; then side=ref; fi
        from_sacrebleu wmt16/dev "$src-$tgt" $side "$1/valid.$language"
        from_sacrebleu wmt16 "$src-$tgt" $side "$1/test.$language"
    done
}

exec python -m train_scripts.runner recipe "$@"
