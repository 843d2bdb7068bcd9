#!/usr/bin/env bash
# Ukrainian grammatical error correction (UA-GEC 2.0): a small model, a drafter for it, and drafts from the input.
#
#   DATA=folder train_scripts/ua_gec.sh          train.src, train.tgt, test.src, test.tgt, one sentence a line
#
# DATA is needed: the sentences of github.com/grammarly/ua-gec, data/gec-only, all annotators, one file for each side. There is
# no validation set: one source sentence in HOLD_OUT is held out, with all its corrections.
#
# Options: --dry-run (print every command), --skip STAGES, --only STAGES. What has been done is not done again.
# Every setting in capitals can be set from the environment, such as GPUS=1; TRAINING_OPTIONS and DECODING_OPTIONS add options
# of fairseq to every training and decoding.
#SBATCH --job-name=ua_gec --gres=gpu:1 --cpus-per-task=8 --time=12:00:00 --output=%x-%j.log
set -euo pipefail
# Under Slurm the script itself is a copy elsewhere.
# shellcheck source=train_scripts/functions.sh
source "${SLURM_SUBMIT_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}/train_scripts/functions.sh"
recipe_options "$@"

: "${NAME:=ua-gec}" "${HOLD_OUT:=30}"
src=src tgt=tgt LANGUAGE_OF_TARGET=uk
licence="UA-GEC 2.0 (github.com/grammarly/ua-gec), CC BY 4.0"
need_data "train.src, train.tgt, test.src, test.tgt"

# The papers have no set of this size: all numbers are ours, Adam's betas and label smoothing those of Vaswani et al. 2017.
: "${SUBWORDS:=unigram}" "${VOCABULARY:=4000}" "${BLOCK_SIZE:=20}" "${BLOCK_SIZES:=5,10,20}"
: "${VERIFIER_UPDATES:=6000}" "${DRAFTER_UPDATES:=4500}" "${VERIFIER_TOKENS:=2048}" "${DRAFTER_TOKENS:=1024}" "${MAX_TOKENS:=2048}"
: "${VERIFIER_LR:=0.003}" "${DRAFTER_LR:=0.001}" "${WARMUP_UPDATES:=1000}" "${SAVE_INTERVAL_UPDATES:=250}"
: "${VERIFIER_DROPOUT:=0.2}" "${DRAFTER_DROPOUT:=0.1}" "${WIDTH:=128}" "${FFN_WIDTH:=512}" "${HEADS:=4}" "${LAYERS:=4}"
: "${DRAFTER_OPTIONS:=--transition-rank 32 --transition-state 64 --transition-dropout 0.1 --label-smoothing 0}"
: "${AVERAGE:=0}" # a learning rate that ends at 0 leaves nothing to average out
: "${TEACHERS:=0}" "${DISTIL_DECODER:=greedy}" "${DISTIL_RATIO:=2}"
decoders=(iad)
: "${COMPARED:=fairseq beam 5,fast-beam,greedy,gad,gad++ high-quality,iad}" # Jacobi's wide windows take long on 5,392 sentences, and gain little
metric_options=(--metrics "f0.5,bleu,sacrebleu" --source "data-bin/$NAME/raw/test.$src")

small_models

get_text() {
    local set language files=()
    for set in train test; do
        if [ -z "$dry_run" ]; then check_pair "$DATA/$set" "$src" "$tgt"; fi
    done
    for language in "$src" "$tgt"; do
        files+=("$DATA/train.$language" "$1/whole.$language" "$DATA/test.$language" "$1/test.$language")
    done
    perform "${tool[@]}" clean-lines "${files[@]}"
    perform "${tool[@]}" hold-out "$1/whole" "$1/valid" "$1/train" --languages "$src" "$tgt" --one-in "$HOLD_OUT"
}

run_recipe
