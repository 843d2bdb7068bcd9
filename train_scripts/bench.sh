#!/usr/bin/env bash
# Speed of all decoders on trained models, side by side. Usually run by `make bench`, after `make demo`.
#
#   train_scripts/bench.sh                       the demo's models
#   NAME=multi30k.en-de train_scripts/bench.sh   others that demo.sh trained
#
# Results: results/NAME/bench/table.md and table.json. REPEATS, TIMING_SENTENCES and BATCH_SIZES change how much is measured.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ -d .venv/bin ]; then PATH=$PWD/.venv/bin:$PATH; fi
# shellcheck source=train_scripts/functions.sh
source train_scripts/functions.sh

: "${NAME:=cldr.en-de}"
: "${REPEATS:=5}" "${TIMING_SENTENCES:=100}" "${BATCH_SIZES:=1,4,8,16,32}"
verifier=checkpoints/$NAME/verifier/checkpoint_best.pt
drafter=checkpoints/$NAME/drafter/checkpoint_best.pt
for file in "data-bin/$NAME" "$verifier" "$drafter"; do
    [ -e "$file" ] || die "NAME=$NAME: $file is missing; train the models first: make demo (with the same NAME and DATA)"
done
spec-dec-compare "data-bin/$NAME" --path "$verifier" --drafter-path "$drafter" \
    --remove-bpe sentencepiece --skip-invalid-size-inputs-valid-test \
    --repeats "$REPEATS" --timing-sentences "$TIMING_SENTENCES" --timing-batch-sizes "$BATCH_SIZES" \
    --results "results/$NAME/bench" "$@"
