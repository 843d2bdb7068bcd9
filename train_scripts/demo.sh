#!/usr/bin/env bash
# From nothing to a table of what draft-and-verify decoding gains. Usually run by `make demo`.
#
#   train_scripts/demo.sh                                       a generated corpus; at most 15 minutes on two slow cores
#   DATA=folder NAME=multi30k.en-de train_scripts/demo.sh       a folder of raw text: train, valid (val, dev) and test
#
# corpus -> subwords -> verifier (an ordinary fairseq Transformer) -> its own translations of the training set (Seq-KD)
# -> drafter -> heads on the verifier, for blockwise decoding -> table. A stage whose output exists is skipped: an
# interrupted run goes on where it was.
set -euo pipefail

if [ -n "${DATA:-}" ] && [ -d "$DATA" ]; then DATA=$(cd "$DATA" && pwd); fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ -d .venv/bin ]; then PATH=$PWD/.venv/bin:$PATH; fi
# shellcheck source=train_scripts/functions.sh
source train_scripts/functions.sh

# ------------------------------------------------------------------------------------------------ what it costs
# Every number below can be set from the environment, for example VERIFIER_MINUTES=20 make demo.

if [ -z "${DATA:-}" ]; then
    : "${TRAIN_PAIRS:=24000}" "${VALID_PAIRS:=500}" "${TEST_PAIRS:=500}"
    : "${SUBWORDS:=bpe}" "${VOCABULARY:=1200}"
    : "${ENCODER_LAYERS:=3}" "${DECODER_LAYERS:=3}" "${DRAFTER_LAYERS:=1}" "${WIDTH:=128}" "${FFN_WIDTH:=512}" "${HEADS:=4}"
    : "${DROPOUT:=0.1}"
    : "${VERIFIER_EPOCHS:=5}" "${VERIFIER_MINUTES:=4.5}"
    : "${DRAFTER_EPOCHS:=4}" "${DRAFTER_MINUTES:=5.5}" "${BLOCK_SIZE:=5}" "${DRAFTER_MAX_TOKENS:=1000}"
    : "${DECODING_BLOCK_SIZE:=4}"  # so few tokens are accepted after minutes of training that more do not pay
    : "${BLOCKWISE_EPOCHS:=2}" "${BLOCKWISE_MINUTES:=1}"
    : "${MAX_TOKENS:=2000}" "${LR:=0.002}" "${WARMUP_UPDATES:=200}"
    : "${SAVE_INTERVAL_UPDATES:=400}" "${LOG_INTERVAL:=10}"
else
    : "${SUBWORDS:=unigram}" "${VOCABULARY:=8000}"
    : "${ENCODER_LAYERS:=4}" "${DECODER_LAYERS:=4}" "${DRAFTER_LAYERS:=2}" "${WIDTH:=128}" "${FFN_WIDTH:=256}" "${HEADS:=4}"
    : "${DROPOUT:=0.3}"
    : "${VERIFIER_EPOCHS:=20}" "${VERIFIER_MINUTES:=0}"  # 0: no limit
    : "${DRAFTER_EPOCHS:=20}" "${DRAFTER_MINUTES:=0}" "${DRAFTER_MAX_TOKENS:=2000}"
    : "${BLOCKWISE_EPOCHS:=10}" "${BLOCKWISE_MINUTES:=0}"
    : "${MAX_TOKENS:=4000}" "${LR:=0.002}" "${WARMUP_UPDATES:=1000}"
    : "${SAVE_INTERVAL_UPDATES:=500}" "${LOG_INTERVAL:=20}"
fi
: "${BLOCK_SIZE:=10}" "${DECODING_BLOCK_SIZE:=$BLOCK_SIZE}" "${BLOCKS_PER_SENTENCE:=4}" "${BLOCKWISE_HEADS:=4}"
: "${DISTIL_BATCH:=128}"
: "${REPEATS:=3}" "${TIMING_SENTENCES:=100}"
: "${SEED:=1}"
[ -n "${NAME:-}" ] || NAME=${DATA:+missing}
: "${NAME:=cldr.en-de}"

# ------------------------------------------------------------------------------------------------ input

[ "$NAME" != missing ] || die "DATA=$DATA: NAME is missing; add a name for the results that ends in the two languages, such as NAME=mytext.en-de"
[[ $NAME =~ ^([A-Za-z0-9_-][A-Za-z0-9._-]*\.)?([A-Za-z0-9_]+)-([A-Za-z0-9_]+)$ ]] ||
    die "NAME=$NAME: does not end in two languages; name it like multi30k.en-de, for text in FILE.en and FILE.de"
src=${BASH_REMATCH[2]}
tgt=${BASH_REMATCH[3]}
[ "$src" != "$tgt" ] || die "NAME=$NAME: both languages are $src; name it like multi30k.en-de"

bin=data-bin/$NAME
models=checkpoints/$NAME
results=results/$NAME
logs=$models/logs
verifier=$models/verifier/checkpoint_best.pt
drafter=$models/drafter/checkpoint_best.pt
blockwise=$models/blockwise/checkpoint_best.pt

if [ -n "${DATA:-}" ]; then
    [ -d "$DATA" ] || die "DATA=$DATA: no such folder; give one with train.$src, train.$tgt, val.$src, val.$tgt, test.$src, test.$tgt"
    train_set=$(find_set "$DATA" "$src" "$tgt" train)
    valid_set=$(find_set "$DATA" "$src" "$tgt" valid val dev)
    if [ -n "${TEST:-}" ]; then test_set=$(find_set "$DATA" "$src" "$tgt" "$TEST"); else test_set=$(find_test_set "$DATA" "$src" "$tgt"); fi
    for set in "$train_set" "$valid_set" "$test_set"; do check_pair "$set" "$src" "$tgt"; done
    origin=$DATA
else
    [ "$src-$tgt" = en-de ] || die "NAME=$NAME: the generated corpus is en-de; use a name that ends so, or give DATA=folder"
    train_set=$bin/raw/train valid_set=$bin/raw/valid test_set=$bin/raw/test
    origin="the generated corpus"
fi

mkdir -p "$bin" "$models" "$logs" "$results"
lock "$models/.lock"
trap on_exit EXIT
if [ ! -e "$bin/origin.txt" ]; then say "$origin" >"$bin/origin.txt"; fi
[ "$(cat "$bin/origin.txt")" = "$origin" ] ||
    die "NAME=$NAME: $bin was made from $(cat "$bin/origin.txt"); choose another NAME, or remove $bin, $models and $results"

# ------------------------------------------------------------------------------------------------ stages

make_corpus() {
    rm -rf "$bin/raw.partial"
    logged "$logs/corpus.log" python -m fairseq_plugins.demo_corpus.corpus --out "$bin/raw.partial" \
        --train "$TRAIN_PAIRS" --valid "$VALID_PAIRS" --test "$TEST_PAIRS"
    mv "$bin/raw.partial" "$bin/raw"
}

make_subwords() {
    logged "$logs/subwords.log" learn_subwords "$bin/subwords.model" "$SUBWORDS" "$VOCABULARY" "$train_set.$src" "$train_set.$tgt"
}

# The dictionary is moved last: it says that all is there.
binarise() {
    local part=$bin/binarised.partial language
    rm -rf "$part"
    mkdir -p "$part/text"
    for language in "$src" "$tgt"; do
        apply_subwords "$bin/subwords.model" "$train_set.$language" "$part/text/train.$language"
        apply_subwords "$bin/subwords.model" "$valid_set.$language" "$part/text/valid.$language"
        apply_subwords "$bin/subwords.model" "$test_set.$language" "$part/text/test.$language"
    done
    logged "$logs/preprocess.log" fairseq-preprocess --source-lang "$src" --target-lang "$tgt" --joined-dictionary \
        --trainpref "$part/text/train" --validpref "$part/text/valid" --testpref "$part/text/test" --destdir "$part"
    rm -rf "$bin/text"
    mv "$part/text" "$part"/*.bin "$part"/*.idx "$part/dict.$src.txt" "$bin"
    mv "$part/dict.$tgt.txt" "$bin"
    rm -rf "$part"
}

# Options that verifier and drafter share
training=(
    --user-dir fairseq_plugins --source-lang "$src" --target-lang "$tgt" --share-all-embeddings
    --encoder-layers "$ENCODER_LAYERS" --encoder-embed-dim "$WIDTH" --encoder-ffn-embed-dim "$FFN_WIDTH" --encoder-attention-heads "$HEADS"
    --decoder-embed-dim "$WIDTH" --decoder-ffn-embed-dim "$FFN_WIDTH" --decoder-attention-heads "$HEADS"
    --dropout "$DROPOUT" --label-smoothing 0.1 --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0
    --lr "$LR" --lr-scheduler inverse_sqrt --warmup-updates "$WARMUP_UPDATES" --max-tokens "$MAX_TOKENS"
    --save-interval-updates "$SAVE_INTERVAL_UPDATES" --skip-invalid-size-inputs-valid-test --num-workers 1 --seed "$SEED"
)

# An ordinary model of fairseq's own translation task: any such checkpoint can be a verifier.
train_verifier() {
    train "$models/verifier" "$logs/verifier.log" "$VERIFIER_MINUTES" \
        fairseq-train "$bin" --task translation --arch transformer "${training[@]}" \
        --decoder-layers "$DECODER_LAYERS" --criterion label_smoothed_cross_entropy --max-epoch "$VERIFIER_EPOCHS"
}

distil() {
    spec-dec-distill decode "$bin" --source-lang "$src" --target-lang "$tgt" --gen-subset train,valid \
        --path "$verifier" --decoder greedy --batch-size "$DISTIL_BATCH" --output "$bin/shards"
    logged "$logs/distil-merge.log" spec-dec-distill merge "$bin" --source-lang "$src" --target-lang "$tgt" \
        --gen-subset train,valid --shards "$bin/shards" --destdir "$bin/distilled"
    rm -r "$bin/shards"
}

# It reads the verifier's states, and begins as a copy of its first layers. Nearer tokens weigh more: what follows a wrong
# one is of no use. Its validation decodes, so it is not that often, and its learning rate ends at 0.
train_drafter() {
    train "$models/drafter" "$logs/drafter.log" "$DRAFTER_MINUTES" \
        fairseq-train "$bin/distilled" --task spec_dec --arch block_nat "${training[@]}" \
        --max-tokens "$DRAFTER_MAX_TOKENS" --lr-scheduler cosine \
        --max-update "$(count_updates "$DRAFTER_EPOCHS" "$DRAFTER_MAX_TOKENS" "$bin/text/train.$src" "$bin/text/train.$tgt")" \
        --drafter-context features --drafter-layers "$DRAFTER_LAYERS" \
        --verifier-path "$verifier" --init-decoder-from "$verifier" --activation-fn relu --src-embedding-copy \
        --criterion glat_loss --position-decay 3 --glancing-start 0 --glancing-end 0 \
        --save-interval-updates "$((3 * SAVE_INTERVAL_UPDATES))" \
        --block-size "$BLOCK_SIZE" --blocks-per-sentence "$BLOCKS_PER_SENTENCE" \
        --best-checkpoint-metric mean_accepted_tokens --maximize-best-checkpoint-metric
}

# The sizes are the verifier's own; with an identity first head so is the output (Stern et al. 2018, footnote 1).
train_blockwise() {
    train "$models/blockwise" "$logs/blockwise.log" "$BLOCKWISE_MINUTES" \
        fairseq-train "$bin/distilled" --task spec_dec --arch blockwise_transformer "${training[@]}" \
        --base-path "$verifier" --freeze-base --identity-first-head --blockwise-heads "$BLOCKWISE_HEADS" \
        --criterion blockwise_loss --max-epoch "$BLOCKWISE_EPOCHS" \
        --best-checkpoint-metric mean_accepted_tokens --maximize-best-checkpoint-metric
}

# One thread: with more, the many small operations of decoding one sentence cost more than they gain, fairseq's too.
measure() {
    OMP_NUM_THREADS=${DECODING_THREADS:-1} python -m fairseq_plugins.benchmarks.compare "$bin" --source-lang "$src" --target-lang "$tgt" \
        --path "$verifier" --drafter-path "$drafter" --block-size "$DECODING_BLOCK_SIZE" --blockwise-path "$blockwise" \
        --remove-bpe sentencepiece --reference "$test_set.$tgt" --skip-invalid-size-inputs-valid-test \
        --repeats "$REPEATS" --timing-sentences "$TIMING_SENTENCES" --results "$results"
}

say "Demo $NAME: ${origin}, models in $models, logs in $logs."
if [ -z "${DATA:-}" ]; then
    stage "$bin/raw" "1. generate a corpus of $TRAIN_PAIRS sentence pairs" make_corpus
fi
stage "$bin/subwords.model" "2. learn $VOCABULARY subwords" make_subwords
stage "$bin/dict.$tgt.txt" "3. binarise the text" binarise
stage "$models/verifier" "4. train the verifier, an ordinary fairseq Transformer" train_verifier
stage "$bin/distilled" "5. translate the training set with the verifier, for the drafter to learn from" distil
stage "$models/drafter" "6. train the drafter" train_drafter
stage "$models/blockwise" "7. train $BLOCKWISE_HEADS heads on the verifier, for blockwise decoding" train_blockwise
if [ -e "$results/table.md" ]; then
    say "[have] 8. the table: $results/table.md (remove it to measure again)"
    say
    cat "$results/table.md"
else
    stage "$results/table.md" "8. compare decoders on the test set" measure
fi
say
say "Finished in $(duration $SECONDS) min. The table is also in $results/table.md and table.json."
