#!/usr/bin/env bash
# Compare the iterations of the three Jacobi decoders (Santilli et al. 2023) with greedy decoding, without and with the
# n-gram pool. Run `make train` first, with the same NAME.
#
#   NAME=multi30k.en-de train_scripts/jacobi_table.sh
#   NAME=multi30k.en-de MINUTES=25 train_scripts/jacobi_table.sh     also a verifier after 25 minutes of consistency training
#
# An interrupted training resumes, and existing decodings are kept. The table: results/NAME/jacobi.md.
script=${BASH_SOURCE[0]}
# shellcheck source=train_scripts/recipe.sh
source "$(dirname "$script")/recipe.sh" || exit
source train_scripts/trained.sh
no_options "$@"

: "${NAME:=generated.en-de}" "${SUBSET:=test}" "${BLOCK_SIZE:=3}" "${DECODING_BATCH:=1}"
: "${MINUTES:=0}" # of consistency training, from the verifier and on its translations; 0: none
: "${UPDATES:=700}" "${LR:=0.002}" "${WARMUP_UPDATES:=60}" "${MAX_TOKENS:=2048}" "${DROPOUT:=0}" "${TRAJECTORY_BLOCK:=8}" "${SEED:=1}"
models=checkpoints/$NAME/jacobi-table
cells=results/$NAME/jacobi-table
table=results/$NAME/jacobi.md
find_trained "$NAME" verifier
[[ $BLOCK_SIZE =~ ^[1-9][0-9]*$ ]] || die "BLOCK_SIZE=$BLOCK_SIZE: give at least 1 token"

[[ $MINUTES =~ ^[0-9.]+$ ]] || die "MINUTES=$MINUTES: give minutes of training, 0 for none"
if [ "$MINUTES" != 0 ]; then find_trained "$NAME" distilled verifier; fi

mkdir -p "$cells"
export LOCK=$cells/.lock

# count CELL MODEL DECODER OPTIONS...
count() { measure "$cells/$SUBSET-$1" "$1" "$2" --batch-size "$DECODING_BATCH" --decoder "${@:3}"; }

# count_all PREFIX MODEL OPTIONS...: count for greedy and all Jacobi decoders, without and with the pool. Iterations are
# counted, so every position is verified.
count_all() {
    local pool options
    count "$1greedy" "$2" greedy
    for pool in "" -pool; do
        options=(--fixed-width "${@:3}" ${pool:+--jacobi-pool})
        count "$1jacobi$pool" "$2" jacobi "${options[@]}"
        count "$1gs-jacobi$pool" "$2" gs-jacobi --block-size "$BLOCK_SIZE" "${options[@]}"
        count "$1hybrid-jacobi$pool" "$2" hybrid-jacobi --block-size "$BLOCK_SIZE" "${options[@]}"
    done
}

# row TITLE GREEDY CELL: sum of iterations, greedy's sum divided by it, and whether the output is that of greedy
row() {
    local same=no
    if cmp -s <(grep '^H-' "$cells/$SUBSET-$2.out" | cut -f 1,3 | sort) <(grep '^H-' "$cells/$SUBSET-$3.out" | cut -f 1,3 | sort); then same=yes; fi
    awk -v title="$1" -v same="$same" 'NR == FNR { greedy = $3; next }
        { printf "| %s | %s | %s | %.2f× | %s |\n", title, $1, $3, greedy / $3, same }' "$cells/$SUBSET-$2" "$cells/$SUBSET-$3"
}

# rows PREFIX WHICH: the rows of one verifier; every title ends with WHICH
rows() {
    local pool
    row "greedy$2" "$1greedy" "$1greedy"
    for pool in "" -pool; do
        row "jacobi${pool:+, n-gram pool}$2" "$1greedy" "$1jacobi$pool"
        row "gs-jacobi, b = $BLOCK_SIZE${pool:+, n-gram pool}$2" "$1greedy" "$1gs-jacobi$pool"
        row "hybrid-jacobi, b = $BLOCK_SIZE${pool:+, n-gram pool}$2" "$1greedy" "$1hybrid-jacobi$pool"
    done
}

train_verifier() {
    mkdir -p "$models/logs"
    # shellcheck disable=SC2046  # several options
    runner train "$models/verifier" "consistency training" "$models/logs/verifier.log" "$MINUTES" \
        fairseq-train "$distilled" --user-dir fairseq_plugins --task translation --arch transformer $(tool model-options "$verifier") \
        --finetune-from-model "$verifier" --criterion jacobi_consistency --trajectory-block "$TRAJECTORY_BLOCK" \
        --label-smoothing 0.1 --dropout "$DROPOUT" --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 --lr "$LR" \
        --lr-scheduler cosine --warmup-updates "$WARMUP_UPDATES" --max-update "$UPDATES" --max-tokens "$MAX_TOKENS" --num-workers 1 \
        --seed "$SEED" --skip-invalid-size-inputs-valid-test \
        --best-checkpoint-metric tokens_per_iteration --maximize-best-checkpoint-metric
}

say "Jacobi decoders of $NAME, subset $SUBSET."
count_all "" "$verifier"
if [ "$MINUTES" != 0 ]; then
    train_verifier
    count_all trained- "$models/verifier/checkpoint_best.pt" --jacobi-init unk
fi
{
    printf '| decoder | BLEU | iterations | greedy / row | same output |\n| --- | --: | --: | --: | --- |\n'
    rows "" ""
    if [ "$MINUTES" != 0 ]; then rows trained- ", after consistency training"; fi
    printf '\nIterations of all sentences of %s, subset %s; the n-gram pool is beyond the paper.\n' "$NAME" "$SUBSET"
} >"$table.partial"
mv "$table.partial" "$table"
say
cat "$table"
