#!/usr/bin/env bash
# CNN/DailyMail summarisation with BART-base as verifier and drafter, distilled from BART-large fine-tuned on it
# (SpecDec section 6 and Table 6).
#
#   DATA=folder train_scripts/cnn_dm.sh          train.source, train.target, val.*, test.*, one article or summary a line
#
# DATA is needed: the text is to be made from the original stories (github.com/abisee/cnn-dailymail). The BART models (4 GB)
# are downloaded, or read from BART=folder (model.pt, dict.txt, encoder.json, vocab.bpe) and TEACHER=file.
#
# Options: --dry-run (print every command), --skip STAGES, --only STAGES. What has been done is not done again.
# Every setting in capitals can be set from the environment, such as GPUS=1; TRAINING_OPTIONS and DECODING_OPTIONS add options
# of fairseq to every training and decoding.
#SBATCH --job-name=cnn_dm --gres=gpu:8 --cpus-per-task=32 --time=2-00:00:00 --output=%x-%j.log
set -euo pipefail
# Under Slurm the script itself is a copy elsewhere.
# shellcheck source=train_scripts/functions.sh
source "${SLURM_SUBMIT_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}/train_scripts/functions.sh"
recipe_options "$@"

: "${NAME:=cnn_dm}"
src=source tgt=target LANGUAGE_OF_TARGET=en
licence="news stories of CNN and Daily Mail, for research; BART: MIT"
need_data "train.source, train.target, val.*, test.*"

SUBWORDS=gpt2
VOCABULARY=0
TEACHERS=0 # not trained here
ACTIVATION=gelu
# fairseq, examples/bart/README.summarization.md: fine-tuning.
: "${VERIFIER_TOKENS:=$((2048 * 4 * 8))}" "${MAX_TOKENS:=2048}" "${VERIFIER_UPDATES:=20000}" "${WARMUP_UPDATES:=500}"
# GAD Table 10: drafter. SpecDec Table 6: k = 25.
: "${DRAFTER_TOKENS:=$paper_drafter_tokens}" "${DRAFTER_MAX_TOKENS:=2048}" "${BLOCK_SIZE:=25}" "${BLOCK_SIZES:=10,15,20,25}"
: "${SWEEP_SENTENCES:=500}" "${SAVE_INTERVAL_UPDATES:=500}" # ours
task_options=(--truncate-source)
# fairseq, examples/bart/summarize.py: how BART summarises CNN/DailyMail. Our decoders do without the rule against repetition.
: "${DISTIL_BEAM:=4}"
distil_options=(--lenpen 2.0 --max-len-b 140 --min-len 55 --no-repeat-ngram-size 3)
search_options=(--max-len-b 140 --min-len 55)
metric_options=(--metrics "rouge,repetition")
if [ -n "${SUMMARY_LENGTHS:-}" ]; then # other limits, for other summaries
    read -ra search_options <<<"$SUMMARY_LENGTHS"
    distil_options=(--lenpen 2.0 --no-repeat-ngram-size 3 "${search_options[@]}")
fi

models_url=https://dl.fbaipublicfiles.com/fairseq
if [ -z "${BART:-}" ]; then
    BART=downloads/bart.base
    # No checksums are published; the least sizes are guesses that catch an error page or a torn file.
    fetch "$models_url/models/bart.base.tar.gz" downloads/bart.base.tar.gz 200000000
    fetch "$models_url/models/bart.large.cnn.tar.gz" downloads/bart.large.cnn.tar.gz 1000000000
    for model in bart.base bart.large.cnn; do
        if [ ! -e "downloads/$model/model.pt" ]; then perform tar -xzf "downloads/$model.tar.gz" -C downloads; fi
    done
    fetch "$models_url/gpt2_bpe/encoder.json" "$BART/encoder.json" 1000000
    fetch "$models_url/gpt2_bpe/vocab.bpe" "$BART/vocab.bpe" 400000
    : "${TEACHER:=downloads/bart.large.cnn/model.pt}"
fi
[ -n "${TEACHER:-}" ] || die "TEACHER is missing; with BART=folder give the checkpoint to distil from as well"

read -ra verifier_batch <<<"$(batch "$VERIFIER_TOKENS" "$MAX_TOKENS")"
read -ra drafter_batch <<<"$(batch "$DRAFTER_TOKENS" "$DRAFTER_MAX_TOKENS")"
verifier_options=(
    --task translation --arch bart_base --finetune-from-model "$BART/model.pt" --share-all-embeddings
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --dropout 0.1 --attention-dropout 0.1 --weight-decay 0.01
    --optimizer adam --adam-betas '(0.9, 0.999)' --adam-eps 1e-8 --clip-norm 0.1 --lr 3e-5 --lr-scheduler polynomial_decay
    --total-num-update "$VERIFIER_UPDATES" --max-update "$VERIFIER_UPDATES" --warmup-updates "$WARMUP_UPDATES"
    "${verifier_batch[@]}"
)
# The shape of BART-base (Lewis et al. 2020).
drafter_training=(
    --arch block_nat_base --encoder-embed-dim 768 --encoder-ffn-embed-dim 3072 --encoder-attention-heads 12
    --decoder-embed-dim 768 --decoder-ffn-embed-dim 3072 --decoder-attention-heads 12 --encoder-learned-pos
    --decoder-learned-pos --layernorm-embedding --no-scale-embedding --share-all-embeddings
    --max-source-positions 1024 --max-target-positions 1024 "${paper_drafter[@]}" "${drafter_batch[@]}" --dropout 0.1
)

get_text() { copy_text "$1"; }

run_recipe
