#!/usr/bin/env bash
# Compare drafters: the papers' drafter, its variants, and drafters that read the verifier's states, all trained for the
# same time with one verifier. Run `make train` first, with the same NAME.
#
#   train_scripts/drafter_table.sh                                                    the demo's verifier, 5 minutes each
#   NAME=multi30k.en-de MINUTES=30 train_scripts/drafter_table.sh                     another verifier that a recipe trained
#   SEEDS="1 2 3" DRAFTERS="shared features-1" train_scripts/drafter_table.sh         two drafters, three times each
#
# Existing models and measurements are kept, so an interrupted run resumes. The table: results/NAME/drafters.md.
script=${BASH_SOURCE[0]}
# shellcheck source=train_scripts/recipe.sh
source "$(dirname "$script")/recipe.sh" || exit
source train_scripts/trained.sh
no_options "$@"

: "${NAME:=generated.en-de}" "${SUBSET:=test}" "${MINUTES:=5}" "${SEEDS:=1}"
: "${BLOCK_SIZE:=15}" "${KS:=5 10 15}" "${TIMED_K:=5}"
: "${LR:=0.002}" "${WARMUP_UPDATES:=200}" "${MAX_TOKENS:=1000}" "${DROPOUT:=0.1}"
: "${DECODING_BATCH:=32}" "${DISTIL_MAX_TOKENS:=12000}" "${TIMING_SENTENCES:=100}" "${REPEATS:=3}" "${LOG_INTERVAL:=20}"

models=checkpoints/$NAME/drafter-table
cells=results/$NAME/drafter-table
table=results/$NAME/drafters.md
find_trained "$NAME" distilled verifier

# By default glancing is off and the loss weights nearer tokens more. Drafters that read tokens share the verifier's
# encoder and start as a copy of its decoder, because short trainings from scratch would show nothing.
started="--init-decoder-from $verifier --activation-fn relu"
features="--position-decay 3 --glancing-start 0 --glancing-end 0 $started --drafter-context features --blocks-per-sentence 4 --drafter-layers"
glancing="--glancing-start 0.5 --glancing-end 0.3 --glancing-updates 10000 --blocks-per-sentence"
begun="$started --share-encoder $glancing"
known=$(cat <<END
full                 | distilled | the papers': own encoder, full attention, glancing | $glancing 1 --drafter-attention full
causal               | distilled | own encoder, prefix-causal, glancing | $glancing 4
shared               | distilled | shared encoder, prefix-causal, glancing | $glancing 4 --share-encoder
started              | distilled | begun as the verifier's decoder, shared encoder, prefix-causal, 4 blocks, glancing | $begun 4
started-1-block      | distilled | begun as the verifier's decoder, 1 block per sentence | $begun 1
started-full         | distilled | begun as the verifier's decoder, 1 block, full attention | $begun 1 --drafter-attention full
started-no-glancing  | distilled | begun as the verifier's decoder, without glancing | $begun 4 --glancing-start 0 --glancing-end 0
started-raw          | raw       | begun as the verifier's decoder, trained on the references (no Seq-KD) | $begun 4
features-1           | distilled | verifier's states, 1 layer | $features 1
features-2           | distilled | verifier's states, 2 layers | $features 2
features-4           | distilled | verifier's states, 4 layers | $features 4
features-no-decay    | distilled | 1 layer, all positions weigh the same | $features 1 --position-decay 0
features-glancing    | distilled | 1 layer, glancing | $features 1 $glancing 4
features-soft        | distilled | 1 layer, half of the loss from the verifier's distribution | $features 1 --soft-targets 0.5
features-transition  | distilled | 1 layer, scores of a token given the drafted one before it | $features 1 --transition-rank 32
features-state       | distilled | 1 layer, such scores given all drafted tokens before it | $features 1 --transition-rank 32 --transition-state 64 --transition-dropout 0.1
features-beam        | beam      | 1 layer, trained on the verifier's beam search instead of its greedy output | $features 1
features-raw         | raw       | 1 layer, trained on the references (no Seq-KD) | $features 1
END
)
all=$(cut -d ' ' -f 1 <<<"$known" | paste -s -d ' ')
beam=$raw/distilled-beam
: "${DRAFTERS:=$all}"

# set_drafter NAME: set data, what (a description) and options
set_drafter() {
    local line
    line=$(grep "^$1 *|" <<<"$known") || die "DRAFTERS=$DRAFTERS: $1 is unknown; give some of: $all"
    IFS='|' read -r _ data what options <<<"$line"
    data=${data// /} what=${what# } what=${what% }
    data=${!data}
}

# The papers' drafter has the verifier's shape.
sizes=$(tool size-options "$verifier")

# The distilled data of the demo, of Multi30k and of UA-GEC are the verifier's greedy output.
make_beam() {
    local files=("$raw"/train.*-*.bin) pair shards=$raw/beam-shards
    pair=$(basename "${files[0]}" | cut -d . -f 2)
    if [ ! -e "$1" ]; then
        spec-dec-distill decode "$raw" --source-lang "${pair%-*}" --target-lang "${pair#*-}" --gen-subset train,valid \
            --path "$verifier" --decoder fast-beam --beam 5 --max-tokens "$DISTIL_MAX_TOKENS" --output "$shards"
    fi
    runner stage "$1" "translate the training set with the verifier and 5 beams" "$models/logs/beam.log" spec-dec-distill merge "$raw" \
        --source-lang "${pair%-*}" --target-lang "${pair#*-}" --gen-subset train,valid --shards "$shards" --max-length-ratio 2 --destdir "$1"
    rm -rf "$shards"
}

# train_one RUN SEED
train_one() {
    # shellcheck disable=SC2086  # several options
    runner train "$models/$1" "train $1: $what" "$models/logs/$1.log" "$MINUTES" \
        fairseq-train "$data" --user-dir fairseq_plugins --task spec_dec --arch block_nat $sizes --share-all-embeddings --criterion glat_loss \
        --dropout "$DROPOUT" --label-smoothing 0.1 --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 \
        --lr "$LR" --lr-scheduler inverse_sqrt --warmup-updates "$WARMUP_UPDATES" --max-tokens "$MAX_TOKENS" --num-workers 1 --seed "$2" \
        --verifier-path "$verifier" --block-size "$BLOCK_SIZE" --src-embedding-copy --skip-invalid-size-inputs-valid-test \
        --best-checkpoint-metric tokens_per_iteration --maximize-best-checkpoint-metric $options
}

# accept CELL MESSAGE DRAFTER K OPTIONS...: decode the subset
accept() { measure "$1" "$2" "$verifier" --drafter-path "$3" --block-size "$4" --batch-size "$DECODING_BATCH" "${@:5}"; }

# time_one FOLDER DRAFTER: measure speed and profile. Whole drafts are verified, because the policy would turn off a drafter
# that saves no time.
time_one() {
    runner stage "$1" "time ${1##*/}" "$1.log" env OMP_NUM_THREADS=1 spec-dec-bench "$raw" --path "$verifier" --drafter-path "$2" \
        --block-size "$TIMED_K" --gen-subset "$SUBSET" --remove-bpe sentencepiece --skip-invalid-size-inputs-valid-test \
        --decoders "greedy,gad fixed width" --profile --repeats "$REPEATS" --timing-sentences "$TIMING_SENTENCES" --results "$1.partial"
}

write_table() {
    local ks drafters seeds note="$MINUTES minutes of training on ${OMP_NUM_THREADS:-$(nproc)} thread(s)"
    read -ra ks <<<"$KS"
    read -ra drafters <<<"$DRAFTERS"
    read -ra seeds <<<"$SEEDS"
    tool drafter-table "$table.partial" --cells "$cells" --models "$models" --drafters "${drafters[@]}" --seeds "${seeds[@]}" \
        --block-sizes "${ks[@]}" --timed "$TIMED_K" --note "$note"
    mv "$table.partial" "$table"
}

mkdir -p "$models/logs" "$cells"
export LOCK=$models/.lock
say "Drafters of $NAME: $DRAFTERS; $MINUTES minutes of training each, seeds $SEEDS."
for drafter in $DRAFTERS; do
    set_drafter "$drafter"
    say "$what" >"$cells/$drafter.what"
    if [ "$data" = "$beam" ]; then make_beam "$data"; fi
    for seed in $SEEDS; do
        run=$drafter-$seed trained=$models/$drafter-$seed/checkpoint_best.pt
        train_one "$run" "$seed"
        for k in $KS; do accept "$cells/$run-$k" "decode with $run, k = $k" "$trained" "$k" --decoder gad --fixed-width; done
        accept "$cells/$run-relaxed" "decode with $run, k = $TIMED_K, gad++ high-quality" "$trained" "$TIMED_K" --decoder gad++ --preset high-quality
        time_one "$cells/$run-timing" "$trained"
    done
done
write_table
say
cat "$table"
