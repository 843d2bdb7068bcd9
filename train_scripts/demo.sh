#!/usr/bin/env bash
# Train a verifier and a drafter on parallel text, and compare decoders. Usually run by `make train`, or
# `make demo DATA=...`.
#
#   train_scripts/demo.sh                                       the text of examples/cldr.en-de
#   DATA=folder NAME=mytext.en-de train_scripts/demo.sh         a folder of raw text: train, valid (val, dev) and test
#
# This is the fastest recipe: the verifier is its own teacher, and there is no sweep. Training ends after a number of
# epochs, so that results can be reproduced; MINUTES sets a time limit instead. The first TEST_SENTENCES (200) of the test
# set in DATA are used.
script=${BASH_SOURCE[0]}
[ ! -L "$script" ] || script=$(realpath -- "$script")
# shellcheck source=train_scripts/recipe.sh
source "$(dirname "$script")/recipe.sh" || exit
recipe_stages=text,binarise,mono,reverse,sample,pairs,verifier,decode,merge,drafter,blockwise,table,card

given=${DATA:+DATA=$DATA} text=${DATA:-data-bin/${FROM:-}/raw}
: "${given:=${FROM:+FROM=$FROM}}"
[ -n "${NAME:-}" ] || NAME=${given:+missing}
: "${NAME:=generated.en-de}"
[ "$NAME" != missing ] || die "$given: NAME is missing; add a name for the results that ends in the two languages, such as NAME=mytext.en-de"
[[ $NAME =~ ^([A-Za-z0-9_-][A-Za-z0-9._-]*\.)?([A-Za-z0-9_]+)-([A-Za-z0-9_]+(-[A-Za-z0-9_]+)*)$ ]] ||
    die "NAME=$NAME: does not end in two languages; name it like mytext.en-de, for text in FILE.en and FILE.de"
src=${BASH_REMATCH[2]} tgt=${BASH_REMATCH[3]}
while [[ $tgt == *-* && ! (-e $text/train.$src && -e $text/train.$tgt) ]]; do # pt-BR-en
    src+=-${tgt%%-*} tgt=${tgt#*-}
done
LANGUAGE_OF_TARGET=$tgt
[ "$src" != "$tgt" ] || die "NAME=$NAME: both languages are $src; name it like mytext.en-de"

# No number here comes from a paper.
if [ -z "$given" ]; then
    [ "$src-$tgt" = en-de ] || die "NAME=$NAME: the generated corpus is en-de; use a name that ends so, or give DATA=folder"
    origin="the generated corpus" licence="generated from Unicode CLDR (Unicode License v3)"
    : "${TRAIN_PAIRS:=24000}" "${VALID_PAIRS:=500}" "${TEST_PAIRS:=500}" "${SUBWORDS:=bpe}" "${VOCABULARY:=1200}"
    : "${LAYERS:=3}" "${DRAFTER_LAYERS:=1}" "${FFN_WIDTH:=512}" "${VERIFIER_DROPOUT:=0.1}"
    : "${VERIFIER_EPOCHS:=5}" "${DRAFTER_EPOCHS:=4}"
    : "${BLOCKWISE_EPOCHS:=2}"
    : "${VERIFIER_TOKENS:=2000}" "${DRAFTER_TOKENS:=1000}" "${WARMUP_UPDATES:=200}" "${SAVE_INTERVAL_UPDATES:=400}" "${LOG_INTERVAL:=10}"
    # After a few minutes of training few tokens are accepted, so longer drafts would save no time.
    : "${BLOCK_SIZE:=5}" "${DECODING_BLOCK_SIZE:=4}"
else
    licence="that of the text in $text"
    : "${SUBWORDS:=unigram}" "${VOCABULARY:=4000}"
    : "${LAYERS:=4}" "${DRAFTER_LAYERS:=2}" "${FFN_WIDTH:=256}" "${VERIFIER_DROPOUT:=0.2}"
    : "${VERIFIER_EPOCHS:=30}" "${DRAFTER_EPOCHS:=20}" "${BLOCKWISE_EPOCHS:=10}"
    # Small updates, because 6,000 pairs give only 130 updates per epoch.
    : "${VERIFIER_TOKENS:=1000}" "${DRAFTER_TOKENS:=1000}" "${WARMUP_UPDATES:=300}" "${SAVE_INTERVAL_UPDATES:=500}" "${LOG_INTERVAL:=20}"
    : "${BLOCK_SIZE:=10}" "${DECODING_BLOCK_SIZE:=$BLOCK_SIZE}"
fi
: "${WIDTH:=128}" "${HEADS:=4}" "${VERIFIER_LR:=0.002}" "${DRAFTER_LR:=0.002}" "${DRAFTER_DROPOUT:=$VERIFIER_DROPOUT}" "${MAX_TOKENS:=4000}"
: "${BLOCKWISE_HEADS:=4}" "${TEACHERS:=0}" "${DISTIL_DECODER:=greedy}" "${DISTIL_MAX_TOKENS:=3000}"
: "${AVERAGE:=0}" "${TENSORBOARD:=0}" # a few checkpoints, far apart: their average is worse than the best of them
: "${TEST_SENTENCES:=200}" # every decoder translates them
: "${FP16:=0}"             # in full precision lossless decoders are identical on a GPU too
: "${DECODING_THREADS:=1}" # with more, the many small operations of decoding one sentence cost more than they gain, fairseq's too

VERIFIER_UPDATES=0 DRAFTER_UPDATES=0 # epochs and minutes end the training
source train_scripts/small_models.sh
# A time limit may end these trainings at any moment, so their learning-rate schedule needs no end.
verifier_options+=" --lr-scheduler inverse_sqrt --max-epoch $VERIFIER_EPOCHS"
blockwise_training+=" --lr-scheduler inverse_sqrt --max-epoch $BLOCKWISE_EPOCHS"
# Validation decodes, which is slow, so it runs less often.
drafter_training+=" --warmup-updates $WARMUP_UPDATES --save-interval-updates $((3 * SAVE_INTERVAL_UPDATES))"
search_options="--block-size $DECODING_BLOCK_SIZE"

get_text() { tool example-text "$1" --train "$TRAIN_PAIRS" --valid "$VALID_PAIRS" --test "$TEST_PAIRS"; }

exec python -m train_scripts.runner recipe "$@"
