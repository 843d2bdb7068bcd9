#!/usr/bin/env bash
# Multi30k image captions, English to German: a Transformer-Tiny and a drafter for it.
#
#   train_scripts/multi30k.sh                    downloads the captions (1.4 MB)
#   DATA=folder train_scripts/multi30k.sh        train.en, train.de, val.*, test*.* of your own
#   SHAPE=base train_scripts/multi30k.sh         40 million parameters, too large for CPU caches; the tiny verifier teaches it
#SBATCH --job-name=multi30k --gres=gpu:1 --cpus-per-task=8 --time=06:00:00 --output=%x-%j.log --open-mode=append --signal=B:USR1@300
script=${BASH_SOURCE[0]} # Slurm runs a copy from elsewhere, and knows of which file
[ -e "$(dirname "$script")/recipe.sh" ] || [ -L "$script" ] || script=$(scontrol show job "$SLURM_JOB_ID" | sed -n 's/^ *Command=\(.*\.sh\).*/\1/p;T;q')
[ ! -L "$script" ] || script=$(realpath -- "$script")
# shellcheck source=train_scripts/recipe.sh
source "$(dirname "$script")/recipe.sh" || exit
source train_scripts/downloads.sh

[[ ${SHAPE:=tiny} =~ ^(tiny|base)$ ]] || die "SHAPE=$SHAPE: choose from tiny, base"
if [ "$SHAPE" = base ]; then
    # Trains on the captions and on the tiny verifier's beam-5 translations; an hour on two cores with AVX-512 BF16.
    : "${NAME:=multi30k-base.en-de}" "${TEACHER:=checkpoints/multi30k.en-de/verifier.pt}" "${TEACHERS:=0}" "${KEEP_RAW:=1}"
    : "${ENCODER_LAYERS:=4}" "${LAYERS:=6}" "${WIDTH:=512}" "${FFN_WIDTH:=2048}" "${HEADS:=8}"
    : "${VERIFIER_UPDATES:=3200}" "${VERIFIER_TOKENS:=1024}" "${VERIFIER_LR:=0.0008}" "${VERIFIER_DROPOUT:=0.15}"
    : "${WARMUP_UPDATES:=400}" "${SAVE_INTERVAL_UPDATES:=200}" "${DRAFTER_UPDATES:=2000}"
    : "${DRAFTER_LAYERS:=2}" "${DRAFTER_OPTIONS:=--feature-layers 0,3,6 --transition-rank 64 --transition-state 64 --transition-dropout 0.1}"
    get_models() {
        local model=data-bin/$NAME/subwords.model
        if [ -e "$model" ]; then return; fi
        perform cp "${TEACHER%/*}/subwords.model" "$model.partial"
        perform mv "$model.partial" "$model"
    }
fi
: "${NAME:=multi30k.en-de}"
src=en tgt=de LANGUAGE_OF_TARGET=de
metric_options="--metrics bleu,sacrebleu,chrf"
licence="captions of Multi30k (github.com/multi30k/dataset), for non-commercial research"

: "${SUBWORDS:=unigram}" "${VOCABULARY:=5000}" # few, so that each is seen often enough in 29,000 sentences: ours
: "${BLOCK_SIZE:=10}" "${BLOCK_SIZES:=5,10}"   # captions have 15 tokens: ours; the papers' 25 is for news
: "${TEACHER_UPDATES:=7500}" "${VERIFIER_UPDATES:=1500}" "${DRAFTER_UPDATES:=4500}" # about 27, 6 and 9 epochs: ours
: "${VERIFIER_TOKENS:=2048}" "${DRAFTER_TOKENS:=1024}" "${MAX_TOKENS:=2048}" # ours
: "${TEACHER_LR:=0.004}" "${VERIFIER_LR:=0.001}" "${DRAFTER_LR:=0.001}" "${WARMUP_UPDATES:=1000}" "${SAVE_INTERVAL_UPDATES:=500}" # ours
: "${TEACHER_DROPOUT:=0.2}" "${VERIFIER_DROPOUT:=0.1}" "${DRAFTER_DROPOUT:=0.1}" # ours
: "${DRAFTER_LAYERS:=4}" "${DRAFTER_OPTIONS:=--transition-rank 32}" # ours
: "${AVERAGE:=0}" # a learning rate that ends at 0 leaves nothing to average out
# The verifier starts from its teacher and trains on the teacher's beam-5 translations. Its greedy search then reaches their
# quality with more certainty, so that more drafted tokens are accepted. The drafter trains on the verifier's greedy output.
: "${TEACHERS:=1}" "${DRAFTER_DATA:=verifier}" "${DISTIL_RATIO:=2}" # the ratio leaves out what repeats itself without end, for the verifier
: "${LAYERS:=4}" "${WIDTH:=128}" "${FFN_WIDTH:=256}" "${HEADS:=4}" # Wu et al. 2021 (Good for Misconceived Reasons), Transformer-Tiny
source train_scripts/small_models.sh
if [ "$SHAPE" = base ]; then
    verifier_options+=" --task spec_dec --encoder-normalize-before --decoder-normalize-before --attention-dropout 0.1"
    verifier_options+=" --lr-scheduler polynomial_decay --total-num-update $VERIFIER_UPDATES"
    # Other processors emulate bfloat16, five times as slow as float32.
    if grep -qsE 'avx512_bf16|amx_bf16' /proc/cpuinfo; then cpu_training=--cpu-bf16; fi
fi
teacher_options+=" --lr $TEACHER_LR --dropout $TEACHER_DROPOUT --max-update $TEACHER_UPDATES"
if [ "$TEACHERS" -gt 0 ]; then
    verifier_options+=" --finetune-from-model checkpoints/$NAME/teacher1.pt --warmup-updates $((VERIFIER_UPDATES / 15))"
fi

get_text() { from_multi30k "$1" "${TEST:-test_2016_flickr}"; }

exec python -m train_scripts.runner recipe "$@"
