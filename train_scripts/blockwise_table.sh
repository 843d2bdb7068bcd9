#!/usr/bin/env bash
# Table 1 of Stern et al. 2018: BLEU and mean accepted block size of blockwise decoding for several k, with a frozen or
# fine-tuned base model, trained on raw data or on its own translations. Run `make train` first, with the same NAME.
#
#   train_scripts/blockwise_table.sh                                                  the demo's model
#   NAME=multi30k.en-de EPOCHS=10 SUBSET=test train_scripts/blockwise_table.sh       another model that a recipe trained
#
# Trains 4 models for every k, each for EPOCHS or MINUTES. Existing models and decodings are kept, so an interrupted run
# resumes. The table: results/NAME/blockwise.md.
script=${BASH_SOURCE[0]}
# shellcheck source=train_scripts/recipe.sh
source "$(dirname "$script")/recipe.sh" || exit
source train_scripts/trained.sh
no_options "$@"

: "${NAME:=generated.en-de}" "${SUBSET:=valid}" "${KS:=2 4 6 8 10}"
: "${EPOCHS:=5}" "${MINUTES:=0}"  # 0: no limit
: "${LR:=0.002}" "${FINE_TUNE_LR:=0.0003}"
: "${WARMUP_UPDATES:=100}" "${MAX_TOKENS:=4000}" "${DROPOUT:=0.1}" "${HEAD_LOSS:=mean}"
: "${DECODING_BATCH:=32}" "${LOG_INTERVAL:=20}" "${SEED:=1}"
# As in the paper, head 1 is trained, too, so BLEU varies a little with a frozen base (footnote 1). With yes, head 1 is the
# base model's own projection.
: "${IDENTITY_FIRST_HEAD:=no}"

models=checkpoints/$NAME/blockwise-table
cells=results/$NAME/blockwise-table
table=results/$NAME/blockwise.md
find_trained "$NAME" distilled verifier
for k in $KS; do
    [[ $k =~ ^[0-9]+$ ]] && [ "$k" -ge 2 ] || die "KS=$KS: $k is not a block size; give numbers of at least 2, such as KS='2 4 6'"
done
[[ $IDENTITY_FIRST_HEAD =~ ^(yes|no)$ ]] || die "IDENTITY_FIRST_HEAD=$IDENTITY_FIRST_HEAD: give yes or no"

mkdir -p "$models/logs" "$cells"
export LOCK=$models/.lock

# train_heads K BASE DATA NUMBER: BASE is frozen or fine-tuned, DATA raw or distilled. Fine-tuning starts from the heads
# that were trained on the frozen base. Untrained heads would first damage the base, which a short training cannot repair.
train_heads() {
    local k=$1 base=$2 data=$3 lr=$FINE_TUNE_LR minutes=$MINUTES options=() run=$2-$3-$1
    if [ "$base" = frozen ]; then
        lr=$LR options+=(--freeze-base)
    else
        # fairseq counts the time of the training that this one starts from.
        minutes=$(awk -v m="$MINUTES" 'BEGIN { print 2 * m }')
        options+=(--finetune-from-model "$models/frozen-$data-$k/checkpoint_best.pt")
    fi
    if [ "$IDENTITY_FIRST_HEAD" = yes ]; then options+=(--identity-first-head); fi
    runner train "$models/$run" "$4. train $k heads, base $base, $data data" "$models/logs/$run.log" "$minutes" \
        fairseq-train "${!data}" --user-dir fairseq_plugins --task spec_dec --arch blockwise_transformer --base-path "$verifier" \
        --blockwise-heads "$k" --criterion blockwise_loss --head-loss "$HEAD_LOSS" --label-smoothing 0.1 --dropout "$DROPOUT" \
        --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 --lr "$lr" --lr-scheduler inverse_sqrt \
        --warmup-updates "$WARMUP_UPDATES" --max-tokens "$MAX_TOKENS" --max-epoch "$EPOCHS" --num-workers 1 --seed "$SEED" \
        --skip-invalid-size-inputs-valid-test "${options[@]}"
}

# cell FILE: BLEU / mean accepted block size, as in the paper
cell() { awk '{ printf "%.2f / %.2f", $1, $4 }' "$1"; }

columns=(frozen-raw frozen-distilled fine-tuned-raw fine-tuned-distilled)

# updates K: the minimum and maximum over the four models
updates() {
    local column
    for column in "${columns[@]}"; do
        grep -oE 'num_updates[^0-9]+[0-9]+' "$models/logs/$column-$1.log" | tail -n 1
    done | grep -o '[0-9]*' | sort -n | sed -n '1p;$p' | paste -s -d - | sed 's/-/ to /'
}

write_table() {
    local k column
    {
        printf '| k | frozen, raw | frozen, distilled | fine-tuned, raw | fine-tuned, distilled | updates |\n| --: | --: | --: | --: | --: | --: |\n'
        printf '| 1 | %s | | | | |\n' "$(cell "$cells/$SUBSET-greedy")"
        for k in $KS; do
            printf '| %s |' "$k"
            for column in "${columns[@]}"; do printf ' %s |' "$(cell "$cells/$SUBSET-$column-$k")"; done
            printf ' %s |\n' "$(updates "$k")"
        done
        printf '\nBLEU (sacrebleu) / mean accepted block size of %s, subset %s; k = 1 is the model itself, decoded greedily. Fine-tuning starts from the heads on the frozen base.\n' "$NAME" "$SUBSET"
        printf 'Every model: at most %s epochs' "$EPOCHS"
        if [ "$MINUTES" != 0 ]; then printf ' and %s minutes of training on %s thread(s)' "$MINUTES" "${OMP_NUM_THREADS:-$(nproc)}"; fi
        printf '; lr %s (frozen), %s (fine-tuned), head loss: %s, identity first head: %s.\n' "$LR" "$FINE_TUNE_LR" "$HEAD_LOSS" "$IDENTITY_FIRST_HEAD"
    } >"$table.partial"
    mv "$table.partial" "$table"
}

total=$(($(wc -w <<<"$KS") * ${#columns[@]}))
say "Blockwise decoding of $NAME, k in $KS: $total models, in $models."
measure "$cells/$SUBSET-greedy" "0 of $total. the model itself" "$verifier" --batch-size "$DECODING_BATCH" --decoder greedy
number=0
for k in $KS; do
    for column in "${columns[@]}"; do
        base=${column%-*} data=${column##*-}
        number=$((number + 1))
        train_heads "$k" "$base" "$data" "$number of $total"
        measure "$cells/$SUBSET-$base-$data-$k" "$number of $total. decode with them" "$models/$base-$data-$k/checkpoint_best.pt" \
            --batch-size "$DECODING_BATCH" --decoder blockwise --fixed-width
    done
done
write_table
say
cat "$table"
