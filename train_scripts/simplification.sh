#!/usr/bin/env bash
# Sentence simplification: the set-up of Aggressive Decoding Table 4 (Transformer-base, WikiLarge), scored with SARI.
#
#   DATA=folder train_scripts/simplification.sh        train.src, train.tgt, valid.*, test.*, a sentence a line; test.tgt.0,
#                                                      test.tgt.1 ... hold further references (Turk has 8, ASSET 10)
#
# DATA is needed: WikiLarge is given out by its authors (github.com/XingxingZhang/dress); the references of Turk are at
# github.com/cocoxu/simplification, those of ASSET at github.com/facebookresearch/asset.
#
# Options: --dry-run (print every command), --skip STAGES, --only STAGES. What has been done is not done again.
# Every setting in capitals can be set from the environment, such as GPUS=1; TRAINING_OPTIONS and DECODING_OPTIONS add options
# of fairseq to every training and decoding.
#SBATCH --job-name=simplification --gres=gpu:4 --cpus-per-task=16 --time=1-00:00:00 --output=%x-%j.log
set -euo pipefail
# Under Slurm the script itself is a copy elsewhere.
# shellcheck source=train_scripts/functions.sh
source "${SLURM_SUBMIT_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}/train_scripts/functions.sh"
recipe_options "$@"

: "${NAME:=simplification}"
src=src tgt=tgt LANGUAGE_OF_TARGET=en
licence="that of the corpora in DATA"
need_data "train.src, train.tgt, valid.*, test.*"

# The paper says Transformer-base and no more: Table 11, from scratch, which it gives for the other rewriting task.
SUBWORDS=moses
: "${VOCABULARY:=32000}" "${VERIFIER_TOKENS:=$((5120 * 4 * 4))}" "${MAX_TOKENS:=5120}" "${VERIFIER_EPOCHS:=60}" "${DROPOUT:=0.3}"
# The paper decodes with the input as draft (iad); a drafter for the rest is ours. GAD Table 10, right, but fewer updates.
: "${DRAFTER_TOKENS:=$((5120 * 4 * 4))}" "${DRAFTER_MAX_TOKENS:=4096}" "${DRAFTER_UPDATES:=100000}" "${BLOCK_SIZE:=15}" "${BLOCK_SIZES:=5,10,15}"
: "${TEACHERS:=0}" "${DISTIL_DECODER:=greedy}"
decoders=(iad)
metric_options=(--metrics "sari,bleu,sacrebleu" --source "data-bin/$NAME/raw/test.$src")
for reference in "$DATA"/test."$tgt".[0-9]*; do
    if [ -e "$reference" ]; then test_references+=("$reference"); fi
done

read -ra verifier_batch <<<"$(batch "$VERIFIER_TOKENS" "$MAX_TOKENS")"
read -ra drafter_batch <<<"$(batch "$DRAFTER_TOKENS" "$DRAFTER_MAX_TOKENS")"
verifier_options=(
    --task translation --arch transformer_wmt_en_de --share-all-embeddings --optimizer adam --adam-betas '(0.9, 0.98)'
    --adam-eps 1e-8 --lr 5e-4 --lr-scheduler inverse_sqrt --warmup-updates 4000 --weight-decay 0.0
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --dropout "$DROPOUT" --max-epoch "$VERIFIER_EPOCHS"
    "${verifier_batch[@]}"
)
drafter_training=(
    --arch block_nat_base --share-all-embeddings "${paper_drafter[@]}" "${drafter_batch[@]}" --dropout 0.1 --max-update "$DRAFTER_UPDATES"
)

get_text() { copy_text "$1"; }

run_recipe
