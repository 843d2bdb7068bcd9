#!/usr/bin/env bash
# IWSLT 2014 German to English, prepared as fairseq's examples/translation/prepare-iwslt14.sh does.
#
#   train_scripts/iwslt14.sh                     downloads the talks (20 MB)
#   DATA=folder train_scripts/iwslt14.sh         train.de, train.en, valid.*, test.* of your own, raw text
#
# Options: --dry-run (print every command), --skip STAGES, --only STAGES. What has been done is not done again.
# Every setting in capitals can be set from the environment, such as GPUS=1; TRAINING_OPTIONS and DECODING_OPTIONS add options
# of fairseq to every training and decoding.
#SBATCH --job-name=iwslt14 --gres=gpu:1 --cpus-per-task=8 --time=24:00:00 --output=%x-%j.log
set -euo pipefail
# Under Slurm the script itself is a copy elsewhere.
# shellcheck source=train_scripts/functions.sh
source "${SLURM_SUBMIT_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}/train_scripts/functions.sh"
recipe_options "$@"

: "${NAME:=iwslt14.de-en}"
src=de tgt=en LANGUAGE_OF_TARGET=en
metric_options=(--metrics "bleu,sacrebleu,chrf")
licence="TED talks, CC BY-NC-ND 4.0 (wit3.fbk.eu)"

# fairseq, examples/translation/README.md and prepare-iwslt14.sh: everything but the number of updates, which it leaves open.
SUBWORDS=moses
: "${VOCABULARY:=10000}" "${MAX_LENGTH:=175}" "${MAX_RATIO:=1.5}" "${VERIFIER_UPDATES:=50000}"
: "${VERIFIER_TOKENS:=4096}" "${MAX_TOKENS:=4096}"
verifier_training=(
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 0.0
    --lr 5e-4 --lr-scheduler inverse_sqrt --warmup-updates 4000 --dropout 0.3 --weight-decay 0.0001
)
# The papers have no drafter for this set: the same batch, and of GAD Table 10 all but the batch and 300,000 updates.
: "${DRAFTER_TOKENS:=4096}" "${DRAFTER_UPDATES:=100000}" "${BLOCK_SIZE:=15}" "${BLOCK_SIZES:=5,10,15}"
: "${TEACHERS:=0}" # the verifier is its own teacher

size=(--encoder-ffn-embed-dim 1024 --decoder-ffn-embed-dim 1024 --encoder-attention-heads 4 --decoder-attention-heads 4) # transformer_iwslt_de_en
read -ra verifier_batch <<<"$(batch "$VERIFIER_TOKENS" "$MAX_TOKENS")"
read -ra drafter_batch <<<"$(batch "$DRAFTER_TOKENS" "$MAX_TOKENS")"
verifier_options=(
    --task translation --arch transformer_iwslt_de_en --share-all-embeddings "${verifier_training[@]}" "${verifier_batch[@]}"
    --max-update "$VERIFIER_UPDATES"
)
drafter_training=(
    --arch block_nat_base "${size[@]}" --share-all-embeddings "${paper_drafter[@]}" "${drafter_batch[@]}"
    --dropout 0.1 --max-update "$DRAFTER_UPDATES"
)

get_text() {
    if [ -n "${DATA:-}" ]; then
        copy_text "$1"
        return
    fi
    # No checksum is published; fairseq's copy has about 19 MB.
    fetch http://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz downloads/iwslt14/de-en.tgz 15000000
    perform tar -xzf downloads/iwslt14/de-en.tgz -C downloads/iwslt14
    perform "${tool[@]}" ted-talks downloads/iwslt14/de-en "$1"
}

run_recipe
