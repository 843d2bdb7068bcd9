#!/usr/bin/env bash
# Compare the speed of all decoders, fairseq's own search and CTranslate2 on trained models. Usually run by `make bench`,
# after `make train`, on an otherwise idle machine.
#
#   train_scripts/bench.sh                       the models of the generated corpus
#   NAME=multi30k.en-de train_scripts/bench.sh   other models that a recipe trained
#
# Results: results/NAME/bench/table.md and table.json. Settings: REPEATS, TIMING_SENTENCES, BATCH_SIZES, THREADS.
# Further options go to spec-dec-bench, such as --remove-bpe --tokenizer moses for models of SUBWORDS=moses.
script=${BASH_SOURCE[0]}
[ ! -L "$script" ] || script=$(realpath -- "$script")
# shellcheck source=train_scripts/recipe.sh
source "$(dirname "$script")/recipe.sh" || exit

: "${NAME:=generated.en-de}"
: "${REPEATS:=5}" "${TIMING_SENTENCES:=100}" "${BATCH_SIZES:=1,4,8,16,32}" "${THREADS:=1}"
raw=data-bin/$NAME trained=checkpoints/$NAME
for needed in "$raw" "$trained/verifier.pt" "$trained/drafter.pt"; do
    [ -e "$needed" ] || die "NAME=$NAME: $needed is missing; train the models first: make train (with the same NAME and DATA), or a recipe"
done
blockwise=$trained/blockwise.pt
models=("$raw" --path "$trained/verifier.pt" --drafter-path "$trained/drafter.pt" --skip-invalid-size-inputs-valid-test)
if [ -e "$blockwise" ]; then models+=(--blockwise-path "$blockwise"); fi
# Set the number of threads first: libraries read it once, when they are loaded.
OMP_NUM_THREADS=$THREADS python -m fairseq_plugins.benchmarks.benchmark "${models[@]}" --decoders all \
    --repeats "$REPEATS" --timing-sentences "$TIMING_SENTENCES" --timing-batch-sizes "$BATCH_SIZES" --results "results/$NAME/bench" "$@"
