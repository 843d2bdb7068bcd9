#!/usr/bin/env bash
# WMT14 English to German and back: the set-up of GAD Tables 1 to 6 and of SpecDec.
#
#   train_scripts/wmt14.sh                                      English to German; downloads 1.7 GB
#   NAME=wmt14.de-en train_scripts/wmt14.sh                     German to English
#   SIZE=big train_scripts/wmt14.sh                             base, big or 12-2
#   DATA=folder train_scripts/wmt14.sh                          train.en, train.de, valid.*, test.* of your own, raw text
#   sbatch --array=0-7 train_scripts/wmt14.sh --only decode     decode the training set in eight jobs
#SBATCH --job-name=wmt14 --gres=gpu:8 --cpus-per-task=32 --time=5-00:00:00 --output=%x-%j.log --open-mode=append --signal=B:USR1@300
script=${BASH_SOURCE[0]} # Slurm runs a copy from elsewhere, and knows of which file
[ -e "$(dirname "$script")/recipe.sh" ] || [ -L "$script" ] || script=$(scontrol show job "$SLURM_JOB_ID" | sed -n 's/^ *Command=\(.*\.sh\).*/\1/p;T;q')
[ ! -L "$script" ] || script=$(realpath -- "$script")
# shellcheck source=train_scripts/recipe.sh
source "$(dirname "$script")/recipe.sh" || exit
source train_scripts/downloads.sh

: "${NAME:=wmt14.en-de}" "${DROPOUT:=0.1}"
language=de
licence="WMT14 training data (statmt.org/wmt14), see there for each corpus"
source train_scripts/wmt.sh
if [ "$tgt" = de ]; then metric_options+=" --compound-split"; fi # as WMT14 en-de papers report BLEU

# The teacher: Transformer-big with raw text (GAD section 5.1), trained as Ott et al. 2018 and fairseq's
# examples/scaling_nmt/README.md: 3584 tokens x 16 x 8 GPUs, learning rate 0.001, dropout 0.3.
teacher_options="--task translation --arch transformer_vaswani_wmt_en_de_big --share-all-embeddings --optimizer adam
    --adam-betas '(0.9, 0.98)' --clip-norm 0.0 --lr 0.001 --lr-scheduler inverse_sqrt --warmup-updates 4000 --warmup-init-lr 1e-7
    --dropout 0.3 --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --max-update ${TEACHER_UPDATES:-100000}"
: "${TEACHER_TOKENS:=$((3584 * 16 * 8))}"

get_text() {
    # No checksums are published for the training corpora: a file must have nine tenths of its size at statmt.org. sacrebleu
    # downloads and checks the validation set (newstest2013) and the test set (newstest2014, all 3,003 sentences).
    local folder=downloads/wmt14 language side
    fetch http://statmt.org/wmt13/training-parallel-europarl-v7.tgz $folder/europarl-v7.tgz 560000000
    fetch http://statmt.org/wmt13/training-parallel-commoncrawl.tgz $folder/commoncrawl.tgz 780000000
    fetch http://www.statmt.org/wmt14/training-parallel-nc-v9.tgz $folder/nc-v9.tgz 69000000
    for language in de en; do
        from_archives "$1/train.$language" "$folder/europarl-v7.tgz:training/europarl-v7.de-en.$language" \
            "$folder/commoncrawl.tgz:commoncrawl.de-en.$language" "$folder/nc-v9.tgz:training/news-commentary-v9.de-en.$language"
        side=src
        if [ "$language" = "$tgt" ]; then side=ref; fi
        from_sacrebleu wmt13 "$src-$tgt" $side "$1/valid.$language"
        from_sacrebleu wmt14/full "$src-$tgt" $side "$1/test.$language"
    done
}

exec python -m train_scripts.runner recipe "$@"
