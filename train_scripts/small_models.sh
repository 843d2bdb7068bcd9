# shellcheck shell=bash disable=SC2034  # the runner reads these variables
# Training options of recipes for little data, for which the papers have no hyper-parameters, from the settings of the
# recipe. Adam's betas and label smoothing are those of Vaswani et al. 2017; the other values are our choice.
size="--encoder-layers ${ENCODER_LAYERS:=$LAYERS} --encoder-embed-dim $WIDTH --encoder-ffn-embed-dim $FFN_WIDTH --encoder-attention-heads $HEADS
    --decoder-layers $LAYERS --decoder-embed-dim $WIDTH --decoder-ffn-embed-dim $FFN_WIDTH --decoder-attention-heads $HEADS
    --share-all-embeddings"
training="--optimizer adam --adam-betas '(0.9, 0.98)' --lr-scheduler cosine --warmup-updates $WARMUP_UPDATES --label-smoothing 0.1
    --clip-norm 1.0"
blockwise_training="$training --lr $VERIFIER_LR --max-update $VERIFIER_UPDATES"
verifier_options="--task translation --arch transformer $size --criterion label_smoothed_cross_entropy $blockwise_training
    --dropout $VERIFIER_DROPOUT"
teacher_options=$verifier_options
[ -z "${FROM:-}" ] || size= # that of the models of FROM
# The drafter starts as a copy of the verifier's layers, so a short warm-up is enough.
drafter_training="--arch block_nat_tiny $size $training --lr $DRAFTER_LR --dropout $DRAFTER_DROPOUT --max-update $DRAFTER_UPDATES
    --warmup-updates $((DRAFTER_UPDATES / 15))"
