#!/usr/bin/env bash
# Iterations of the three Jacobi decoders (Santilli et al. 2023) against greedy decoding, without and with the n-gram pool.
# After `make train`, with the same NAME. Trains nothing.
#
#   NAME=multi30k.en-de train_scripts/jacobi_table.sh
#
# Decodings that exist are kept. The table: results/NAME/jacobi.md.
script=${BASH_SOURCE[0]}
# shellcheck source=train_scripts/recipe.sh
source "$(dirname "$script")/recipe.sh" || exit
source train_scripts/trained.sh
no_options "$@"

: "${NAME:=generated.en-de}" "${SUBSET:=test}" "${BLOCK_SIZE:=3}" "${DECODING_BATCH:=1}"
cells=results/$NAME/jacobi-table
table=results/$NAME/jacobi.md
find_trained "$NAME" verifier
[[ $BLOCK_SIZE =~ ^[1-9][0-9]*$ ]] || die "BLOCK_SIZE=$BLOCK_SIZE: give at least 1 token"

mkdir -p "$cells"
export LOCK=$cells/.lock

# count CELL DECODER OPTIONS...
count() { measure "$cells/$SUBSET-$1" "$1" "$verifier" --batch-size "$DECODING_BATCH" --decoder "${@:2}"; }

# row TITLE CELL: iterations per sentence's token, how many times fewer than greedy, and whether the output is greedy's
row() {
    local same=no
    if cmp -s <(grep '^H-' "$cells/$SUBSET-greedy.out" | cut -f 1,3 | sort) <(grep '^H-' "$cells/$SUBSET-$2.out" | cut -f 1,3 | sort); then same=yes; fi
    awk -v title="$1" -v same="$same" 'NR == FNR { greedy = $3; next }
        { printf "| %s | %s | %s | %.2f× | %s |\n", title, $1, $3, greedy / $3, same }' "$cells/$SUBSET-greedy" "$cells/$SUBSET-$2"
}

say "Jacobi decoders of $NAME, subset $SUBSET."
count greedy greedy
for pool in "" -pool; do
    options=(${pool:+--jacobi-pool})
    count "jacobi$pool" jacobi "${options[@]}"
    count "gs-jacobi$pool" gs-jacobi --block-size "$BLOCK_SIZE" "${options[@]}"
    count "hybrid-jacobi$pool" hybrid-jacobi --block-size "$BLOCK_SIZE" "${options[@]}"
done
{
    printf '| decoder | BLEU | iterations | fewer than greedy | same output |\n| --- | --: | --: | --: | --- |\n'
    row greedy greedy
    for pool in "" -pool; do
        row "jacobi${pool:+, n-gram pool}" "jacobi$pool"
        row "gs-jacobi, b = $BLOCK_SIZE${pool:+, n-gram pool}" "gs-jacobi$pool"
        row "hybrid-jacobi, b = $BLOCK_SIZE${pool:+, n-gram pool}" "hybrid-jacobi$pool"
    done
    printf '\nIterations of all sentences of %s, subset %s; the n-gram pool is beyond the paper.\n' "$NAME" "$SUBSET"
} >"$table.partial"
mv "$table.partial" "$table"
say
cat "$table"
