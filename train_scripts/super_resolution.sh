#!/usr/bin/env bash
# Image super-resolution by blockwise decoding (Stern et al. 2018, section 7.2) at a small size.
#
#   train_scripts/super_resolution.sh                 8x8 to 16x16 pixels; about 20 minutes of training on two cores
#   SIZE=32 train_scripts/super_resolution.sh         8x8 to 32x32, as in the paper: 3072 tokens an image, better on a GPU
#   FINE_TUNE=1 train_scripts/super_resolution.sh     the heads change the base model, too
#
# Stages: patches -> numbers -> base model -> heads -> greedy, exact and approximate output -> picture, table.
# BASE_MINUTES and BLOCKWISE_MINUTES are time limits of the trainings; BASE_UPDATES=0 BLOCKWISE_UPDATES=0 removes the limits
# of updates. A stage whose output exists is skipped, so an interrupted run resumes.
script=${BASH_SOURCE[0]}
# shellcheck source=train_scripts/recipe.sh
source "$(dirname "$script")/recipe.sh" || exit
no_options "$@"

: "${SIZE:=16}" "${EPSILON:=2}" "${BLOCKWISE_HEADS:=6}"
: "${TRAIN_PATCHES:=4000}" "${VALID_PATCHES:=16}" "${TEST_PATCHES:=32}" "${TILES:=4}"
: "${LAYERS:=2}" "${WIDTH:=64}" "${FFN_WIDTH:=128}" "${HEADS:=4}"
: "${BASE_MINUTES:=0}" "${BLOCKWISE_MINUTES:=0}"
: "${BASE_EPOCHS:=200}" "${BLOCKWISE_EPOCHS:=200}"
: "${BASE_UPDATES:=2500}" "${BLOCKWISE_UPDATES:=600}" # 0: epochs and minutes end the training
: "${FINE_TUNE:=0}"                                   # 1: all weights, the paper's best column, after long training
: "${LR:=0.001}" "${BLOCKWISE_LR:=0.001}" "${WARMUP_UPDATES:=50}" "${IMAGES_PER_BATCH:=4}"
: "${SAVE_INTERVAL_UPDATES:=200}" "${LOG_INTERVAL:=10}" "${SEED:=1}"

[[ $SIZE =~ ^[0-9]+$ ]] && [ $((SIZE % 8)) = 0 ] && [ "$SIZE" -ge 8 ] || die "SIZE=$SIZE: give a multiple of 8, such as 16 or 32"
name=super-resolution-$SIZE
bin=data-bin/$name
models=checkpoints/$name
results=results/$name
logs=$models/logs
base=$models/base/checkpoint_best.pt
blockwise=$models/blockwise/checkpoint_best.pt
tokens=$((3 * SIZE * SIZE))

mkdir -p "$bin" "$models" "$logs" "$results"
export LOCK=$models/.lock

training=(
    --user-dir train_scripts/super_resolution --task spec_dec --source-lang low --target-lang high
    --max-source-positions 256 --max-target-positions $((tokens + 8))
    --label-smoothing 0 --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0
    --lr "$LR" --lr-scheduler inverse_sqrt --warmup-updates "$WARMUP_UPDATES"
    --batch-size "$IMAGES_PER_BATCH" --batch-size-valid "$IMAGES_PER_BATCH" --required-batch-size-multiple 1
    --save-interval-updates "$SAVE_INTERVAL_UPDATES" --num-workers 1 --seed "$SEED"
)

decoding=(
    fairseq-generate "$bin/binarised" --user-dir train_scripts/super_resolution --task spec_dec --source-lang low --target-lang high
    --max-source-positions 256 --max-target-positions $((tokens + 8)) --gen-subset test --batch-size "${DECODING_BATCH:-$TEST_PATCHES}"
    --max-len-a 0 --max-len-b "$tokens" --min-len "$tokens" --unkpen 1000 --log-format none
)

# With a frozen base, exact acceptance gives the base model's own output.
fitting=(--freeze-base --identity-first-head --head-loss mean) fitted="base, frozen"
if [ "$FINE_TUNE" != 0 ]; then fitting=() fitted="fine-tuned"; fi

# decode NAME MESSAGE OPTIONS...: decode the test set into NAME.out; NAME.log has the counts
decode() {
    runner stage "$results/$1.out" "$2" "$results/$1.log" \
        bash -c '"${@:2}" >"$1"' bash "$results/$1.out.partial" "${decoding[@]}" "${@:3}"
}

# row TITLE MODEL NAME [COLUMN]: one line of the table
row() {
    printf '| %s | %s | %s | %s |\n' "$1" "$2" "$(sed -n 's/.* \([0-9.]*\) tokens per iteration.*/\1/p' "$results/$3.log" | tail -n 1)" \
        "$(sed -n "s/^${4:-$3}: PSNR \([0-9.]*\|inf\) dB.*/\1/p" "$logs/images.log")"
}

say "Super-resolution, 8x8 to ${SIZE}x$SIZE pixels: models in $models, logs in $logs."
runner stage "$bin/text" "1. cut $TRAIN_PATCHES patches out of photographs" "$logs/patches.log" \
    python -m train_scripts.tools super-resolution-patches "$bin/text.partial" --size "$SIZE" \
    --train "$TRAIN_PATCHES" --valid "$VALID_PATCHES" --test "$TEST_PATCHES" --seed "$SEED" --tiles "$TILES"
runner stage "$bin/binarised" "2. binarise them" "$logs/preprocess.log" \
    fairseq-preprocess --source-lang low --target-lang high --srcdict "$bin/text/dict.txt" --joined-dictionary \
    --trainpref "$bin/text/train" --validpref "$bin/text/valid" --testpref "$bin/text/test" --destdir "$bin/binarised.partial"
runner train "$models/base" "3. train the base model" "$logs/base.log" "$BASE_MINUTES" \
    fairseq-train "$bin/binarised" --arch image_transformer --image-size "$SIZE" "${training[@]}" --dropout 0 \
    --encoder-layers "$LAYERS" --encoder-embed-dim "$WIDTH" --encoder-ffn-embed-dim "$FFN_WIDTH" --encoder-attention-heads "$HEADS" \
    --decoder-layers "$LAYERS" --decoder-embed-dim "$WIDTH" --decoder-ffn-embed-dim "$FFN_WIDTH" --decoder-attention-heads "$HEADS" \
    --encoder-normalize-before --decoder-normalize-before \
    --criterion label_smoothed_cross_entropy --max-epoch "$BASE_EPOCHS" --max-update "$BASE_UPDATES"
runner train "$models/blockwise" "4. train $BLOCKWISE_HEADS heads with it" "$logs/blockwise.log" "$BLOCKWISE_MINUTES" \
    fairseq-train "$bin/binarised" --arch blockwise_transformer "${training[@]}" --lr "$BLOCKWISE_LR" --dropout 0 --base-path "$base" \
    --blockwise-heads "$BLOCKWISE_HEADS" --criterion blockwise_loss "${fitting[@]}" --max-epoch "$BLOCKWISE_EPOCHS" \
    --max-update "$BLOCKWISE_UPDATES"
decode greedy "5. decode greedily with the base model" --path "$base" --decoder greedy
decode exact "6. decode blockwise" --path "$blockwise" --decoder blockwise --fixed-width
decode approximate "7. decode blockwise, accepting intensities up to $EPSILON away" \
    --path "$blockwise" --decoder blockwise --accept-distance "$EPSILON"
runner stage "$results/images.png" "8. draw $results/images.png" "$logs/images.log" \
    python -m train_scripts.tools super-resolution-images "$results/images.png.partial" \
    "$results/greedy.out" "$results/exact.out" "$results/approximate.out" --tiles "$TILES" --names "greedy,exact,eps = $EPSILON"
{
    printf '| output | model | mean accepted block size | PSNR, dB |\n| --- | --- | --: | --: |\n'
    row greedy base greedy
    row "blockwise, exact" "$fitted" exact
    row "blockwise, ε = $EPSILON" "$fitted" approximate "eps = $EPSILON"
    printf '\n8x8 to %dx%d pixels, %s test images, k = %s.\n' "$SIZE" "$SIZE" "$TEST_PATCHES" "$BLOCKWISE_HEADS"
} >"$results/summary.md"
say
cat "$results/summary.md"
