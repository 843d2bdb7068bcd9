#!/usr/bin/env bash
# Ukrainian grammatical error correction (UA-GEC 2.0): a small model, a drafter for it, and drafts from the input.
#
#   DATA=folder train_scripts/ua_gec.sh          train.src, train.tgt, test.src, test.tgt, one sentence a line
#
# DATA is required: the sentences of github.com/grammarly/ua-gec, data/gec-only, all annotators, one file for each side. It
# has no validation set, so one source sentence in HOLD_OUT is held out, with all its corrections.
#SBATCH --job-name=ua_gec --gres=gpu:1 --cpus-per-task=8 --time=12:00:00 --output=%x-%j.log --open-mode=append --signal=B:USR1@300
script=${BASH_SOURCE[0]} # Slurm runs a copy from elsewhere, and knows of which file
[ -e "$(dirname "$script")/recipe.sh" ] || [ -L "$script" ] || script=$(scontrol show job "$SLURM_JOB_ID" | sed -n 's/^ *Command=\(.*\.sh\).*/\1/p;T;q')
[ ! -L "$script" ] || script=$(realpath -- "$script")
# shellcheck source=train_scripts/recipe.sh
source "$(dirname "$script")/recipe.sh" || exit

: "${NAME:=ua-gec}" "${HOLD_OUT:=30}"
src=src tgt=tgt LANGUAGE_OF_TARGET=uk
licence="UA-GEC 2.0 (github.com/grammarly/ua-gec), CC BY 4.0"

# The papers have no set of this size. Adam's betas and label smoothing are those of Vaswani et al. 2017, other values ours.
: "${SUBWORDS:=unigram}" "${VOCABULARY:=4000}" "${BLOCK_SIZE:=20}" "${BLOCK_SIZES:=5,10,20}"
: "${VERIFIER_UPDATES:=6000}" "${DRAFTER_UPDATES:=4500}" "${VERIFIER_TOKENS:=2048}" "${DRAFTER_TOKENS:=1024}" "${MAX_TOKENS:=2048}"
: "${VERIFIER_LR:=0.003}" "${DRAFTER_LR:=0.001}" "${WARMUP_UPDATES:=1000}" "${SAVE_INTERVAL_UPDATES:=250}"
: "${VERIFIER_DROPOUT:=0.2}" "${DRAFTER_DROPOUT:=0.1}" "${WIDTH:=128}" "${FFN_WIDTH:=512}" "${HEADS:=4}" "${LAYERS:=4}"
: "${DRAFTER_OPTIONS:=--transition-rank 32 --transition-state 64 --transition-dropout 0.1 --label-smoothing 0}"
: "${AVERAGE:=0}" # a learning rate that ends at 0 leaves nothing to average out
: "${TEACHERS:=0}" "${DISTIL_DECODER:=greedy}" "${DISTIL_RATIO:=2}"
decoders=iad
: "${COMPARED:=fairseq beam 5,fast-beam,greedy,gad,gad++ high-quality,iad}" # Jacobi's wide windows take long on 5,392 sentences, and gain little
metric_options="--metrics f0.5,bleu,sacrebleu --source data-bin/$NAME/raw/test.$src"

source train_scripts/small_models.sh

exec python -m train_scripts.runner recipe "$@"
