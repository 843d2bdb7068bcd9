#!/usr/bin/env bash
# IWSLT 2014 German to English, prepared as fairseq's examples/translation/prepare-iwslt14.sh does.
#
#   train_scripts/iwslt14.sh                     downloads the talks (20 MB)
#   DATA=folder train_scripts/iwslt14.sh         train.de, train.en, valid.*, test.* of your own, raw text
#SBATCH --job-name=iwslt14 --gres=gpu:1 --cpus-per-task=8 --time=24:00:00 --output=%x-%j.log --open-mode=append --signal=B:USR1@300
script=${BASH_SOURCE[0]} # Slurm runs a copy from elsewhere, and knows of which file
[ -e "$(dirname "$script")/recipe.sh" ] || [ -L "$script" ] || script=$(scontrol show job "$SLURM_JOB_ID" | sed -n 's/^ *Command=\(.*\.sh\).*/\1/p;T;q')
[ ! -L "$script" ] || script=$(realpath -- "$script")
# shellcheck source=train_scripts/recipe.sh
source "$(dirname "$script")/recipe.sh" || exit
source train_scripts/downloads.sh

: "${NAME:=iwslt14.de-en}"
src=de tgt=en LANGUAGE_OF_TARGET=en
metric_options="--metrics bleu,sacrebleu,chrf"
licence="TED talks, CC BY-NC-ND 4.0 (wit3.fbk.eu)"

# From fairseq's examples/translation/README.md and prepare-iwslt14.sh, which do not give the number of updates.
SUBWORDS=moses
: "${VOCABULARY:=10000}" "${MAX_LENGTH:=175}" "${MAX_RATIO:=1.5}" "${VERIFIER_UPDATES:=50000}"
: "${VERIFIER_TOKENS:=4096}" "${MAX_TOKENS:=4096}"
# The papers have no drafter for this set: as in GAD Table 10, but with the verifier's batch and fewer updates than 300,000.
: "${DRAFTER_TOKENS:=4096}" "${DRAFTER_UPDATES:=100000}" "${BLOCK_SIZE:=15}" "${BLOCK_SIZES:=5,10,15}"
: "${TEACHERS:=0}" # the verifier is its own teacher

verifier_options="--task translation --arch transformer_iwslt_de_en --share-all-embeddings --criterion label_smoothed_cross_entropy
    --label-smoothing 0.1 --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 0.0 --lr 5e-4 --lr-scheduler inverse_sqrt
    --warmup-updates 4000 --dropout 0.3 --weight-decay 0.0001 --max-update $VERIFIER_UPDATES"
# The sizes of transformer_iwslt_de_en.
drafter_training="--arch block_nat_base --encoder-ffn-embed-dim 1024 --decoder-ffn-embed-dim 1024 --encoder-attention-heads 4
    --decoder-attention-heads 4 --share-all-embeddings $paper_drafter --dropout 0.1 --max-update $DRAFTER_UPDATES"

get_text() {
    # No checksum is published; fairseq's copy has about 19 MB.
    fetch http://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz downloads/iwslt14/de-en.tgz 15000000
    perform tar -xzf downloads/iwslt14/de-en.tgz -C downloads/iwslt14
    tool ted-talks downloads/iwslt14/de-en "$1"
}

exec python -m train_scripts.runner recipe "$@"
