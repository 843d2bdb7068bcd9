#!/usr/bin/env bash
# CNN/DailyMail summarisation with BART-base as verifier and drafter, distilled from BART-large fine-tuned on it
# (SpecDec section 6 and Table 6).
#
#   DATA=folder train_scripts/cnn_dm.sh          train.source, train.target, val.*, test.*, one article or summary a line
#
# DATA is required: make its files from the original stories (github.com/abisee/cnn-dailymail). The BART models (4 GB) are
# downloaded, or read from BART=folder (model.pt, dict.txt, encoder.json, vocab.bpe) and TEACHER=file.
#SBATCH --job-name=cnn_dm --gres=gpu:8 --cpus-per-task=32 --time=2-00:00:00 --output=%x-%j.log --open-mode=append --signal=B:USR1@300
script=${BASH_SOURCE[0]} # Slurm runs a copy from elsewhere, and knows of which file
[ -e "$(dirname "$script")/recipe.sh" ] || [ -L "$script" ] || script=$(scontrol show job "$SLURM_JOB_ID" | sed -n 's/^ *Command=\(.*\.sh\).*/\1/p;T;q')
[ ! -L "$script" ] || script=$(realpath -- "$script")
# shellcheck source=train_scripts/recipe.sh
source "$(dirname "$script")/recipe.sh" || exit
source train_scripts/downloads.sh

: "${NAME:=cnn_dm}"
src=source tgt=target LANGUAGE_OF_TARGET=en
licence="news stories of CNN and Daily Mail, for research; BART: MIT"

SUBWORDS=gpt2
TEACHERS=0 # not trained here
ACTIVATION=gelu
# fairseq, examples/bart/README.summarization.md: fine-tuning.
: "${VERIFIER_TOKENS:=$((2048 * 4 * 8))}" "${MAX_TOKENS:=2048}" "${VERIFIER_UPDATES:=20000}" "${WARMUP_UPDATES:=500}"
# GAD Table 10: drafter. SpecDec Table 6: k = 25.
: "${DRAFTER_TOKENS:=$paper_drafter_tokens}" "${DRAFTER_MAX_TOKENS:=2048}" "${BLOCK_SIZE:=25}" "${BLOCK_SIZES:=10,15,20,25}"
: "${SWEEP_SENTENCES:=500}" "${SAVE_INTERVAL_UPDATES:=500}" # ours
task_options=--truncate-source
# fairseq, examples/bart/summarize.py: settings for CNN/DailyMail, but without --no-repeat-ngram-size for our decoders.
: "${DISTIL_BEAM:=4}"
distil_options="--lenpen 2.0 --max-len-b 140 --min-len 55 --no-repeat-ngram-size 3"
search_options="--max-len-b 140 --min-len 55"
metric_options="--metrics rouge,repetition"
if [ -n "${SUMMARY_LENGTHS:-}" ]; then # other limits, for other summaries
    search_options=$SUMMARY_LENGTHS
    distil_options="--lenpen 2.0 --no-repeat-ngram-size 3 $SUMMARY_LENGTHS"
fi

if [ -z "${BART:-}" ]; then
    BART=downloads/bart.base
    : "${TEACHER:=downloads/bart.large.cnn/model.pt}"
fi
[ -n "${TEACHER:-}" ] || die "TEACHER is missing; with BART=folder give the checkpoint to distil from as well"

verifier_options="--task translation --arch bart_base --finetune-from-model $(quoted "$BART/model.pt") --share-all-embeddings
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --dropout 0.1 --attention-dropout 0.1 --weight-decay 0.01
    --optimizer adam --adam-betas '(0.9, 0.999)' --adam-eps 1e-8 --clip-norm 0.1 --lr 3e-5 --lr-scheduler polynomial_decay
    --total-num-update $VERIFIER_UPDATES --max-update $VERIFIER_UPDATES --warmup-updates $WARMUP_UPDATES"
# The shape of BART-base (Lewis et al. 2020).
drafter_training="--arch block_nat_base --encoder-embed-dim 768 --encoder-ffn-embed-dim 3072 --encoder-attention-heads 12
    --decoder-embed-dim 768 --decoder-ffn-embed-dim 3072 --decoder-attention-heads 12 --encoder-learned-pos --decoder-learned-pos
    --layernorm-embedding --no-scale-embedding --share-all-embeddings --max-source-positions 1024 --max-target-positions 1024
    $paper_drafter --dropout 0.1"

get_models() {
    if [ "$BART" != downloads/bart.base ]; then return; fi
    # No checksums are published. The minimum sizes are guesses that detect an error page or a truncated file.
    local url=https://dl.fbaipublicfiles.com/fairseq model
    fetch $url/models/bart.base.tar.gz downloads/bart.base.tar.gz 200000000
    fetch $url/models/bart.large.cnn.tar.gz downloads/bart.large.cnn.tar.gz 1000000000
    for model in bart.base bart.large.cnn; do unpack $model; done
    fetch $url/gpt2_bpe/encoder.json "$BART/encoder.json" 1000000
    fetch $url/gpt2_bpe/vocab.bpe "$BART/vocab.bpe" 400000
}

exec python -m train_scripts.runner recipe "$@"
