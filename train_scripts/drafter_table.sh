#!/usr/bin/env bash
# Which drafter to train: what the papers' drafter, its variants and those that read the verifier's states gain, all trained for
# the same time on one verifier. After `make demo`, with the same NAME.
#
#   train_scripts/drafter_table.sh                                                    the demo's verifier, 5 minutes each
#   NAME=multi30k.en-de MINUTES=30 train_scripts/drafter_table.sh                     another that demo.sh or a recipe trained
#   SEEDS="1 2 3" DRAFTERS="shared features-1" train_scripts/drafter_table.sh         some of them, several times
#
# Models and measurements that exist are kept: an interrupted run goes on where it was. The table: results/NAME/drafters.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ -d .venv/bin ]; then PATH=$PWD/.venv/bin:$PATH; fi
# shellcheck source=train_scripts/functions.sh
source train_scripts/functions.sh

: "${NAME:=cldr.en-de}" "${SUBSET:=test}" "${MINUTES:=5}" "${SEEDS:=1}"
: "${BLOCK_SIZE:=15}" "${KS:=5 10 15}" "${TIMED_K:=5}"
: "${LR:=0.002}" "${WARMUP_UPDATES:=200}" "${MAX_TOKENS:=1000}" "${DROPOUT:=0.1}"
: "${DECODING_BATCH:=32}" "${DISTIL_MAX_TOKENS:=12000}" "${TIMING_SENTENCES:=100}" "${REPEATS:=3}" "${LOG_INTERVAL:=20}"

models=checkpoints/$NAME/drafter-table
cells=results/$NAME/drafter-table
table=results/$NAME/drafters.md
find_trained "$NAME" distilled verifier

# What each is, and its options; glancing is off and nearer tokens weigh more unless a drafter says otherwise.
plain=(--position-decay 3 --glancing-start 0 --glancing-end 0)
started=(--init-decoder-from "$verifier" --activation-fn relu)
features=("${plain[@]}" "${started[@]}" --drafter-context features --blocks-per-sentence 4)
glancing=(--glancing-start 0.5 --glancing-end 0.3 --glancing-updates 10000)
# Drafters that read tokens, on the verifier's encoder and begun as a copy of its decoder: of training from nothing, short trainings
# would show nothing.
begun=("${glancing[@]}" "${started[@]}" --share-encoder)

# set_drafter NAME: sets options, data and what (a few words)
set_drafter() {
    data=$distilled
    local one=("${features[@]}" --drafter-layers 1)
    case $1 in
        full) what="the papers': own encoder, full attention, glancing"
            options=("${glancing[@]}" --drafter-attention full --blocks-per-sentence 1) ;;
        causal) what="own encoder, prefix-causal, glancing"
            options=("${glancing[@]}" --blocks-per-sentence 4) ;;
        shared) what="shared encoder, prefix-causal, glancing"
            options=("${glancing[@]}" --blocks-per-sentence 4 --share-encoder) ;;
        started) what="begun as the verifier's decoder, shared encoder, prefix-causal, 4 blocks, glancing"
            options=("${begun[@]}" --blocks-per-sentence 4) ;;
        started-1-block) what="begun as the verifier's decoder, 1 block per sentence"
            options=("${begun[@]}" --blocks-per-sentence 1) ;;
        started-full) what="begun as the verifier's decoder, 1 block, full attention"
            options=("${begun[@]}" --blocks-per-sentence 1 --drafter-attention full) ;;
        started-no-glancing) what="begun as the verifier's decoder, without glancing"
            options=("${begun[@]}" --blocks-per-sentence 4 --glancing-start 0 --glancing-end 0) ;;
        started-raw) what="begun as the verifier's decoder, trained on the references (no Seq-KD)"
            data=$raw options=("${begun[@]}" --blocks-per-sentence 4) ;;
        features-1 | features-2 | features-4) what="verifier's states, ${1#features-} layers"
            options=("${features[@]}" --drafter-layers "${1#features-}") ;;
        features-no-decay) what="1 layer, all places weigh the same"
            options=("${one[@]}" --position-decay 0) ;;
        features-glancing) what="1 layer, glancing"
            options=("${one[@]}" "${glancing[@]}") ;;
        features-soft) what="1 layer, half of the loss from the verifier's distribution"
            options=("${one[@]}" --soft-targets 0.5) ;;
        features-transition) what="1 layer, scores of a token given the drafted one before it"
            options=("${one[@]}" --transition-rank 32) ;;
        features-beam) what="1 layer, trained on the verifier's beam search instead of its greedy output"
            data=$raw/distilled-beam options=("${one[@]}") ;;
        features-raw) what="1 layer, trained on the references (no Seq-KD)"
            data=$raw options=("${one[@]}") ;;
        *) die "DRAFTERS=$DRAFTERS: $1 is unknown; give some of: $all" ;;
    esac
}
all="full causal shared started started-1-block started-full started-no-glancing started-raw features-1 features-2 features-4"
all+=" features-no-decay features-glancing features-soft features-transition features-beam features-raw"
: "${DRAFTERS:=$all}"

# The papers' drafter has the verifier's shape.
shape() { python - "$verifier" <<'PY'
import sys

import torch
from fairseq_plugins.safe_loading import allow_fairseq_checkpoints

allow_fairseq_checkpoints()
sizes = vars(torch.load(sys.argv[1], map_location="cpu")["cfg"]["model"])
for part in ("encoder", "decoder"):
    for name in ("layers", "embed_dim", "ffn_embed_dim", "attention_heads"):
        print(f"--{part}-{name.replace('_', '-')}", sizes[f"{part}_{name}"])
PY
}
read -ra sizes <<<"$(shape | tr '\n' ' ')"

# The distilled data of the demo, of Multi30k and of UA-GEC are the verifier's greedy output.
make_beam() {
    local files=("$raw"/train.*-*.bin) pair
    pair=$(basename "${files[0]}" | cut -d . -f 2)
    spec-dec-distill decode "$raw" --source-lang "${pair%-*}" --target-lang "${pair#*-}" --gen-subset train,valid \
        --path "$verifier" --max-tokens "$DISTIL_MAX_TOKENS" --output "$raw/beam-shards"
    logged "$models/logs/beam.log" spec-dec-distill merge "$raw" --source-lang "${pair%-*}" --target-lang "${pair#*-}" \
        --gen-subset train,valid --shards "$raw/beam-shards" --max-length-ratio 2 --destdir "$raw/distilled-beam"
    rm -r "$raw/beam-shards"
}

train_one() {
    train "$1" "$models/logs/$(basename "$1").log" "$MINUTES" \
        fairseq-train "$data" --user-dir fairseq_plugins --task spec_dec --arch block_nat "${sizes[@]}" --share-all-embeddings --criterion glat_loss \
        --dropout "$DROPOUT" --label-smoothing 0.1 --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 \
        --lr "$LR" --lr-scheduler inverse_sqrt --warmup-updates "$WARMUP_UPDATES" --max-tokens "$MAX_TOKENS" --num-workers 1 --seed "$2" \
        --verifier-path "$verifier" --block-size "$BLOCK_SIZE" --src-embedding-copy --skip-invalid-size-inputs-valid-test \
        --best-checkpoint-metric mean_accepted_tokens --maximize-best-checkpoint-metric "${options[@]}"
}

# accept CELL MODEL K DECODER OPTIONS...: decode the subset
accept() {
    measure_decoding "$1" "$raw" "$verifier" "$SUBSET" --drafter-path "$2" --block-size "$3" --batch-size "$DECODING_BATCH" --decoder "${@:4}"
}

# time_one FOLDER MODEL: speed beside fairseq's, and where the time goes
time_one() {
    rm -rf "$1.partial"
    OMP_NUM_THREADS=1 logged "$1.log" spec-dec-compare "$raw" --path "$verifier" --drafter-path "$2" --block-size "$TIMED_K" \
        --gen-subset "$SUBSET" --remove-bpe sentencepiece --skip-invalid-size-inputs-valid-test --decoders greedy,gad --profile \
        --repeats "$REPEATS" --timing-sentences "$TIMING_SENTENCES" --results "$1.partial"
    cp "$1.log" "$1.partial/profile.log"
    mv "$1.partial" "$1"
}

write_table() {
    python - "$table.partial" "$cells" "$models" "$KS" "$DRAFTERS" "$SEEDS" "$TIMED_K" "$MINUTES" "${OMP_NUM_THREADS:-$(nproc)}" <<'PY'
import json
import re
import statistics
import sys
from pathlib import Path

import torch
from fairseq_plugins.safe_loading import allow_fairseq_checkpoints
from tabulate import tabulate

allow_fairseq_checkpoints()
target, cells, models, ks, drafters, seeds, timed_k, minutes, threads = sys.argv[1:]
cells, rows = Path(cells), []


def show(values: list[float], form: str) -> str:
    spread = f" ± {statistics.stdev(values):{form}}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{form}}{spread}"


for name in drafters.split():
    runs = [f"{name}-{seed}" for seed in seeds.split()]
    accepted = [[float((cells / f"{run}-{k}").read_text().split()[3]) for run in runs] for k in ks.split()]
    weights = torch.load(Path(models) / runs[0] / "checkpoint_best.pt", map_location="cpu")["model"]
    parameters = sum(value.numel() for value in weights.values() if value.is_floating_point())
    logs = [(Path(models) / "logs" / f"{run}.log").read_text() for run in runs]
    updates = [float(re.findall(r"num_updates (\d+)", log)[-1]) for log in logs]
    bleu = [float((cells / f"{run}-relaxed").read_text().split()[0]) for run in runs]
    draft, single, batch, gain = [], [], [], []
    for run in runs:
        found = json.loads((cells / f"{run}-timing" / "table.json").read_text())["rows"]
        row = next(row for row in found if row["name"] == "gad")
        log = (cells / f"{run}-timing" / "profile.log").read_text().split("Where the time goes: gad", 1)[1]
        draft.append(float(re.search(r"\| drafter +\| +([\d.]+)", log)[1]) / row["iterations"])
        single.append(row["sentences_per_second"]["1"])
        batch.append(row["sentences_per_second"]["16"])
        gain.append(row["speed_up_over_fairseq_beam_1"]["1"])
    what = (cells / f"{name}.what").read_text().strip()
    rows.append([what, *(show(values, ".2f") for values in accepted), show(bleu, ".2f"), show(updates, ".0f"),
                 f"{parameters / 1000:,.0f}", show(draft, ".2f"), show(single, ".1f"), show(batch, ".1f"), show(gain, ".2f")])
header = ["drafter", *(f"accepted, k = {k}" for k in ks.split()), "BLEU of gad++", "updates", "1000 parameters", "ms per draft",
          "sent/s, batch 1", "sent/s, batch 16", "× beam 1"]
note = (f"Every drafter: {minutes} minutes of training on {threads} thread(s). BLEU of gad++ (high-quality), speeds and "
        f"milliseconds: k = {timed_k}.")
Path(target).write_text(tabulate(rows, header, tablefmt="github", colalign=("left", *["right"] * (len(header) - 1)), disable_numparse=True)
                        + f"\n\n{note}\n")
PY
    mv "$table.partial" "$table"
}

mkdir -p "$models/logs" "$cells"
lock "$models/.lock"
trap on_exit EXIT
say "Drafters of $NAME: $DRAFTERS; $MINUTES minutes of training each, seeds $SEEDS."
for drafter in $DRAFTERS; do
    set_drafter "$drafter"
    say "$what" >"$cells/$drafter.what"
    if [ "$data" = "$raw/distilled-beam" ]; then stage "$data" "translate the training set with the verifier and 5 beams" make_beam; fi
    for seed in $SEEDS; do
        run=$drafter-$seed
        stage "$models/$run" "train $run: $what" train_one "$models/$run" "$seed"
        for k in $KS; do
            stage "$cells/$run-$k" "decode with $run, k = $k" accept "$cells/$run-$k" "$models/$run/checkpoint_best.pt" "$k" gad
        done
        stage "$cells/$run-relaxed" "decode with $run, k = $TIMED_K, gad++ high-quality" \
            accept "$cells/$run-relaxed" "$models/$run/checkpoint_best.pt" "$TIMED_K" gad++ --preset high-quality
        stage "$cells/$run-timing" "time $run" time_one "$cells/$run-timing" "$models/$run/checkpoint_best.pt"
    done
done
write_table
say
cat "$table"
