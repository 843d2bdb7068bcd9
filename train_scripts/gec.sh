#!/usr/bin/env bash
# Grammatical error correction: the set-up of Aggressive Decoding Tables 1 to 3.
#
#   DATA=folder train_scripts/gec.sh                   Transformer-big; train.src, train.tgt, valid.*, test.*, a sentence a line
#   DATA=folder MODEL=bart train_scripts/gec.sh        12+2: BART-large with two of its decoder layers
#
# DATA is needed: Lang-8, NUCLE, FCE and W&I+LOCNESS are given out by their owners on request. The papers score with M2
# (F0.5), which is not part of this project: give its scripts the text of results/NAME/test. Ours is the edit F0.5 of spec-dec-metrics.
#
# Options: --dry-run (print every command), --skip STAGES, --only STAGES. What has been done is not done again.
# Every setting in capitals can be set from the environment, such as GPUS=1; TRAINING_OPTIONS and DECODING_OPTIONS add options
# of fairseq to every training and decoding.
#SBATCH --job-name=gec --gres=gpu:4 --cpus-per-task=16 --time=2-00:00:00 --output=%x-%j.log
set -euo pipefail
# Under Slurm the script itself is a copy elsewhere.
# shellcheck source=train_scripts/functions.sh
source "${SLURM_SUBMIT_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}/train_scripts/functions.sh"
recipe_options "$@"

: "${MODEL:=big}"
: "${NAME:=gec.$MODEL}"
src=src tgt=tgt LANGUAGE_OF_TARGET=${LANGUAGE:-en}
licence="that of the corpora in DATA"
need_data "train.src, train.tgt, valid.*, test.*"

# Aggressive Decoding Table 11, training from scratch: 5120 tokens x 4 x 4 GPUs, 60 epochs.
: "${VERIFIER_TOKENS:=$((5120 * 4 * 4))}" "${MAX_TOKENS:=5120}" "${VERIFIER_EPOCHS:=60}" "${VERIFIER_LR:=5e-4}" "${DROPOUT:=0.3}"
# The paper decodes with the input as draft (iad); a drafter for the rest is ours. GAD Table 10, right, but fewer updates.
: "${DRAFTER_TOKENS:=$((5120 * 4 * 4))}" "${DRAFTER_MAX_TOKENS:=4096}" "${DRAFTER_UPDATES:=100000}" "${BLOCK_SIZE:=15}" "${BLOCK_SIZES:=5,10,15}"
: "${TEACHERS:=0}" "${DISTIL_DECODER:=greedy}"
decoders=(iad)
metric_options=(--metrics "f0.5,bleu,sacrebleu" --source "data-bin/$NAME/raw/test.$src")
read -ra verifier_batch <<<"$(batch "$VERIFIER_TOKENS" "$MAX_TOKENS")"
read -ra drafter_batch <<<"$(batch "$DRAFTER_TOKENS" "$DRAFTER_MAX_TOKENS")"

case $MODEL in
    big)
        SUBWORDS=moses
        : "${VOCABULARY:=32000}" # section 4.1
        # Table 11: learning rate 3e-4 to 5e-4 and dropout 0.3 to 0.5 to choose from.
        verifier_options=(
            --task translation --arch transformer_vaswani_wmt_en_de_big --share-all-embeddings --optimizer adam
            --adam-betas '(0.9, 0.98)' --adam-eps 1e-8 --lr "$VERIFIER_LR" --lr-scheduler inverse_sqrt --warmup-updates 4000
            --weight-decay 0.0 --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --dropout "$DROPOUT"
            --max-epoch "$VERIFIER_EPOCHS"
        )
        shape=(--arch block_nat_big)
        ;;
    bart)
        # Section 4.1.3: BART-initialised, 12 encoder and 2 decoder layers. It does not say which decoder layers start it: ours
        # are the first and the last. Nor how it was trained: fairseq's examples/bart/README.summarization.md.
        SUBWORDS=gpt2 ACTIVATION=gelu VOCABULARY=0
        : "${BART_UPDATES:=20000}" "${BART_LAYERS:=0,11}"
        if [ -z "${BART:-}" ]; then
            BART=downloads/bart.large
            # No checksums are published; the least sizes are guesses that catch an error page or a torn file.
            fetch https://dl.fbaipublicfiles.com/fairseq/models/bart.large.tar.gz downloads/bart.large.tar.gz 500000000
            if [ ! -e "$BART/model.pt" ]; then perform tar -xzf downloads/bart.large.tar.gz -C downloads; fi
            fetch https://dl.fbaipublicfiles.com/fairseq/gpt2_bpe/encoder.json "$BART/encoder.json" 1000000
            fetch https://dl.fbaipublicfiles.com/fairseq/gpt2_bpe/vocab.bpe "$BART/vocab.bpe" 400000
        fi
        start=data-bin/$NAME/bart.pt
        perform mkdir -p "data-bin/$NAME"
        if [ ! -e "$start" ]; then perform "${tool[@]}" keep-decoder-layers "$BART/model.pt" "$start" --layers "$BART_LAYERS"; fi
        verifier_options=(
            --task translation --arch bart_large --decoder-layers 2 --finetune-from-model "$start" --share-all-embeddings
            --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --dropout 0.1 --attention-dropout 0.1
            --weight-decay 0.01 --optimizer adam --adam-betas '(0.9, 0.999)' --adam-eps 1e-8 --clip-norm 0.1 --lr 3e-5
            --lr-scheduler polynomial_decay --warmup-updates 500 --total-num-update "$BART_UPDATES" --max-update "$BART_UPDATES"
        )
        shape=(
            --arch block_nat_big --encoder-layers 12 --decoder-layers 2 --encoder-learned-pos --decoder-learned-pos
            --layernorm-embedding --no-scale-embedding --max-source-positions 1024 --max-target-positions 1024
        )
        ;;
    *) die "MODEL=$MODEL: choose from big, bart" ;;
esac
verifier_options+=("${verifier_batch[@]}")
drafter_training=(
    "${shape[@]}" --share-all-embeddings "${paper_drafter[@]}" "${drafter_batch[@]}" --dropout 0.1 --max-update "$DRAFTER_UPDATES"
)

get_text() { copy_text "$1"; }

run_recipe
