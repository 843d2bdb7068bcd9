#!/usr/bin/env bash
# Grammatical error correction: the set-up of Aggressive Decoding Tables 1 to 3.
#
#   DATA=folder train_scripts/gec.sh                   Transformer-big; train.src, train.tgt, valid.*, test.*, a sentence a line
#   DATA=folder MODEL=bart train_scripts/gec.sh        12+2: BART-large with two of its decoder layers
#   DATA=folder LANGUAGE_OF_TARGET=zh train_scripts/gec.sh     scores for another language than English
#
# DATA is required: the owners of Lang-8, NUCLE, FCE and W&I+LOCNESS provide them on request. The papers score with M2
# (F0.5), which is not part of this project: run its scripts on the text of results/NAME/test. We report the edit F0.5 of
# spec-dec-metrics.
#SBATCH --job-name=gec --gres=gpu:4 --cpus-per-task=16 --time=2-00:00:00 --output=%x-%j.log --open-mode=append --signal=B:USR1@300
script=${BASH_SOURCE[0]} # Slurm runs a copy from elsewhere, and knows of which file
[ -e "$(dirname "$script")/recipe.sh" ] || [ -L "$script" ] || script=$(scontrol show job "$SLURM_JOB_ID" | sed -n 's/^ *Command=\(.*\.sh\).*/\1/p;T;q')
[ ! -L "$script" ] || script=$(realpath -- "$script")
# shellcheck source=train_scripts/recipe.sh
source "$(dirname "$script")/recipe.sh" || exit
source train_scripts/downloads.sh

: "${MODEL:=big}"
: "${NAME:=gec.$MODEL}"
: "${LANGUAGE_OF_TARGET:=en}"
src=src tgt=tgt
licence="that of the corpora in DATA"

# Aggressive Decoding Table 11, training from scratch: 5120 tokens x 4 x 4 GPUs, 60 epochs.
: "${VERIFIER_TOKENS:=$((5120 * 4 * 4))}" "${MAX_TOKENS:=5120}" "${VERIFIER_EPOCHS:=60}" "${VERIFIER_LR:=5e-4}" "${DROPOUT:=0.3}"
# The paper drafts from the input only (iad); the trained drafter is our addition. GAD Table 10, right, but fewer updates.
: "${DRAFTER_TOKENS:=$((5120 * 4 * 4))}" "${DRAFTER_MAX_TOKENS:=4096}" "${DRAFTER_UPDATES:=100000}" "${BLOCK_SIZE:=15}" "${BLOCK_SIZES:=5,10,15}"
: "${TEACHERS:=0}" "${DISTIL_DECODER:=greedy}"
decoders=iad
metric_options="--metrics f0.5,bleu,sacrebleu --source data-bin/$NAME/raw/test.$src"

case $MODEL in
    big)
        : "${SUBWORDS:=bpe}" # not moses, to which src and tgt are no languages: it would break "it's" apart
        : "${VOCABULARY:=32000}" # section 4.1
        # Table 11 searches learning rates from 3e-4 to 5e-4 and dropout from 0.3 to 0.5.
        verifier_options="--task translation --arch transformer_vaswani_wmt_en_de_big --share-all-embeddings --optimizer adam
            --adam-betas '(0.9, 0.98)' --adam-eps 1e-8 --lr $VERIFIER_LR --lr-scheduler inverse_sqrt --warmup-updates 4000
            --weight-decay 0.0 --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --dropout $DROPOUT
            --max-epoch $VERIFIER_EPOCHS"
        shape="--arch block_nat_big"
        ;;
    bart)
        # Section 4.1.3: initialised from BART, 12 encoder and 2 decoder layers. The paper does not name the two layers: we
        # take the first and the last. It does not describe training: we follow fairseq's
        # examples/bart/README.summarization.md.
        SUBWORDS=gpt2 ACTIVATION=gelu
        : "${BART_UPDATES:=20000}" "${BART_LAYERS:=0,11}" "${BART:=downloads/bart.large}"
        verifier_options="--task translation --arch bart_large --decoder-layers 2 --share-all-embeddings
            --finetune-from-model data-bin/$NAME/bart.pt --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --dropout 0.1
            --attention-dropout 0.1 --weight-decay 0.01 --optimizer adam --adam-betas '(0.9, 0.999)' --adam-eps 1e-8 --clip-norm 0.1
            --lr 3e-5 --lr-scheduler polynomial_decay --warmup-updates 500 --total-num-update $BART_UPDATES --max-update $BART_UPDATES"
        shape="--arch block_nat_big --encoder-layers 12 --decoder-layers 2 --encoder-learned-pos --decoder-learned-pos
            --layernorm-embedding --no-scale-embedding --max-source-positions 1024 --max-target-positions 1024"
        ;;
    *) die "MODEL=$MODEL: choose from big, bart" ;;
esac
drafter_training="$shape --share-all-embeddings $paper_drafter --dropout 0.1 --max-update $DRAFTER_UPDATES"

get_models() {
    if [ "$MODEL" != bart ]; then return; fi
    # No checksums are published. The minimum sizes are guesses that detect an error page or a truncated file.
    local url=https://dl.fbaipublicfiles.com/fairseq
    if [ "$BART" = downloads/bart.large ]; then
        fetch $url/models/bart.large.tar.gz downloads/bart.large.tar.gz 500000000
        unpack bart.large
        fetch $url/gpt2_bpe/encoder.json "$BART/encoder.json" 1000000
        fetch $url/gpt2_bpe/vocab.bpe "$BART/vocab.bpe" 400000
    fi
    if [ ! -e "data-bin/$NAME/bart.pt" ]; then
        tool keep-decoder-layers "$BART/model.pt" "data-bin/$NAME/bart.pt" --layers "$BART_LAYERS"
    fi
}

exec python -m train_scripts.runner recipe "$@"
