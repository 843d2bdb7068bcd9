# shellcheck shell=bash disable=SC2034  # the scripts read these variables
# Functions for scripts that measure the models of a recipe.

# find_trained NAME KIND...: find a recipe's data (raw, distilled) and models (verifier, drafter, blockwise), or exit with
# an error if one of the KINDs is missing.
find_trained() {
    local name=$1 kind models=checkpoints/$1
    raw=data-bin/$name distilled=data-bin/$name/distilled
    verifier=$models/verifier.pt drafter=$models/drafter.pt blockwise=$models/blockwise.pt
    for kind in raw "${@:2}"; do
        [ -e "${!kind}" ] || die "NAME=$name: ${!kind} is missing; train the models first: make train (with the same NAME and DATA), or a recipe"
    done
}

# measure CELL MESSAGE MODEL OPTIONS...: decode SUBSET of the data; CELL has BLEU, tokens, iterations and tokens per iteration.
measure() {
    runner measure "$1" "$2" fairseq-generate "$raw" --user-dir fairseq_plugins --task spec_dec --path "$3" --gen-subset "$SUBSET" \
        --remove-bpe sentencepiece --scoring sacrebleu --skip-invalid-size-inputs-valid-test --log-format none "${@:4}"
}
