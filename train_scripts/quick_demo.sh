#!/usr/bin/env bash
# Show what draft-and-verify decoding gains, in about two minutes. Usually run by `make demo`.
#
#   train_scripts/quick_demo.sh
#
# 1. Corrects 300 sentences of UA-GEC with the released model, compares decoders, and writes a page to step through drafts.
# 2. Trains a one-layer drafter from scratch for a released translation model, in about a minute, on that model's
#    translations of generated text (Seq-KD), and measures its gain.
#
# Results: results/demo. Nothing of an earlier run is used. UPDATES=1000 trains longer, TIMING_SENTENCES=200 times more
# sentences. To train all models on your own text: make demo DATA=folder NAME=mytext.en-de.
script=${BASH_SOURCE[0]}
[ ! -L "$script" ] || script=$(realpath -- "$script")
# shellcheck source=train_scripts/recipe.sh
source "$(dirname "$script")/recipe.sh" || exit
no_options "$@"

: "${SENTENCES:=300}" "${TRAIN_PAIRS:=3000}" "${TEST_PAIRS:=100}" "${UPDATES:=250}" "${BLOCK_SIZE:=5}" "${TIMING_SENTENCES:=12}" "${TIMING_SECONDS:=1}" "${REPEATS:=3}" "${LOG_INTERVAL:=10}"
: "${TEACHER:=cldr.en-de}" # the model that the drafter is trained for
threads=(env "OMP_NUM_THREADS=${DECODING_THREADS:-1}") # decoding one sentence at a time gains nothing from more

work=data-bin/demo results=results/demo models=checkpoints/demo logs=results/demo/logs
correcting=checkpoints/ua-gec teacher=checkpoints/$TEACHER
for file in "$correcting"/{verifier,drafter}.pt "$teacher/verifier.pt"; do
    [ -e "$file" ] || die "$file: no such file; restore it: git checkout checkpoints"
done
mkdir -p data-bin results checkpoints
for folder in "$work" "$results" "$models"; do
    [ ! -e "$folder" ] || [ -e "$folder/.quick-demo" ] || die "$folder: was not written by this demo; rename it"
done
rm -rf "$work" "$results" "$models"
mkdir -p "$work/ua-gec" "$logs" "$models"
touch "$work/.quick-demo" "$results/.quick-demo" "$models/.quick-demo"

# binarise FOLDER MODEL SRC TGT SETS: binarise the text of FOLDER with dictionaries and subwords of MODEL, into FOLDER/bin.
binarise() {
    local folder=$1 model=$2 src=$3 tgt=$4 set language files=() sets=()
    for set in $5; do
        for language in "$src" "$tgt"; do files+=("$folder/$set.$language" "$folder/$set.subwords.$language"); done
        sets+=("--${set}pref" "$folder/$set.subwords")
    done
    tool apply-subwords "$model/subwords.model" "${files[@]}"
    runner log "$logs/preprocess.log" fairseq-preprocess --source-lang "$src" --target-lang "$tgt" --srcdict "$model/dict.$src.txt" \
        --tgtdict "$model/dict.$tgt.txt" "${sets[@]}" --destdir "$folder/bin"
}

# compare RESULT DATA SRC TGT VERIFIER DRAFTER DECODERS: print a short table, and write the whole one to results.
compare() {
    runner log "$logs/$1.log" "${threads[@]}" spec-dec-bench "$2" --source-lang "$3" --target-lang "$4" --path "$5" --drafter-path "$6" \
        --remove-bpe sentencepiece --decoders "$7" --repeats "$REPEATS" --timing-sentences "$TIMING_SENTENCES" \
        --timing-seconds "$TIMING_SECONDS" --timing-batch-sizes 1 --results "$results/$1"
    say
    tool short-table "$results/$1/table.md"
    say
}

say "1. Error correction: $SENTENCES sentences of UA-GEC (CC BY 4.0, examples/ua-gec) and the released model."
for language in src tgt; do head -n "$SENTENCES" "examples/ua-gec/test.$language" >"$work/ua-gec/test.$language"; done
binarise "$work/ua-gec" "$correcting" src tgt test
compare ua-gec "$work/ua-gec/bin" src tgt "$correcting/verifier.pt" "$correcting/drafter.pt" "fairseq beam 5,greedy,gad,gad fixed width,iad"
runner log "$logs/trace.log" fairseq-generate "$work/ua-gec/bin" --user-dir fairseq_plugins --task spec_dec --source-lang src --target-lang tgt \
    --path "$correcting/verifier.pt" --drafter-path "$correcting/drafter.pt" --decoder gad --fixed-width --trace-file "$results/trace.jsonl"
runner log "$logs/page.log" spec-dec-trace "$results/trace.jsonl" --html "$results/trace.html"
say "Step through what \`gad fixed width\` drafted in all $SENTENCES sentences: $results/trace.html"
say "(the table's tokens per iteration and times are those of the first $TIMING_SENTENCES)"
say
say "2. A drafter from scratch: one layer for $teacher, $UPDATES updates on that model's translations of $TRAIN_PAIRS generated sentences."
tool example-text "$work/generated" --train "$TRAIN_PAIRS" --valid 50 --test "$TEST_PAIRS"
binarise "$work/generated" "$teacher" en de "train valid test"
runner log "$logs/distil.log" spec-dec-distill decode "$work/generated/bin" --source-lang en --target-lang de --gen-subset train,valid \
    --path "$teacher/verifier.pt" --decoder greedy --max-tokens 3000 --max-len-b 60 --output "$work/generated/shards"
runner log "$logs/merge.log" spec-dec-distill merge "$work/generated/bin" --shards "$work/generated/shards" --gen-subset train,valid \
    --destdir "$work/generated/distilled"
runner train "$models/training" "train the drafter" "$logs/drafter.log" 0 fairseq-train "$work/generated/distilled" --user-dir fairseq_plugins --task spec_dec \
    --source-lang en --target-lang de --arch block_nat --criterion glat_loss --verifier-path "$teacher/verifier.pt" \
    --drafter-context features --drafter-layers 1 --src-embedding-copy --init-decoder-from "$teacher/verifier.pt" \
    --block-size "$BLOCK_SIZE" --blocks-per-sentence 4 --position-decay 3 --glancing-start 0 --glancing-end 0 \
    --optimizer adam --adam-betas '(0.9, 0.98)' --lr 0.002 --lr-scheduler cosine --warmup-updates "$((UPDATES / 10))" --clip-norm 1 \
    --max-update "$UPDATES" --max-tokens 1000 --cpu --num-workers 0 --no-save-optimizer-state
compare generated "$work/generated/bin" en de "$teacher/verifier.pt" "$models/training/checkpoint_last.pt" "fairseq beam 5,greedy,gad"
say "With more training more tokens are accepted: docs/training.md. All tables are in $results. Finished in $((SECONDS / 60)):$(printf %02d $((SECONDS % 60))) min."
