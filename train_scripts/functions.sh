# shellcheck shell=bash
# Shared by the recipes in this folder, to be sourced: messages, stages, input checks, subwords, training with progress.
#
# A stage writes under a name that ends in .partial and renames at the end, so what has its final name is complete,
# and a recipe that is started again goes on where it was interrupted.

# Decimal points in every country; text is UTF-8 throughout.
export LC_ALL=C PYTHONUTF8=1

# Threads that wait sleep instead of spinning: where anything else runs on the same cores, spinning slows training down up to
# seven times.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}

say() { printf '%s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; current_log=; exit 2; }

current_log=  # log of the command that is running: its end is shown when the command fails

duration() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); }

# To be called by `trap ... EXIT`. A recipe killed by its own process id would leave fairseq running on: end the children.
on_exit() {
    local status=$?
    trap - EXIT
    pkill -TERM -P $$ 2>/dev/null || true
    if [ "$status" -ne 0 ] && [ "$status" -lt 128 ] && [ -s "$current_log" ]; then
        printf '\n' >&2
        grep -v '^[HSTPD]-' "$current_log" | tail -n 15 >&2 || true
        printf 'error: the last command failed; all it said is in %s. After mending the cause, run the same command again: finished stages are kept.\n' "$current_log" >&2
    fi
    exit "$status"
}

# lock FILE: let no second run write to the same places. Children inherit the lock, so it also finds a run that was orphaned.
lock() {
    command -v flock >/dev/null || return 0
    exec 9>"$1"
    flock --wait 5 9 || die "another run is writing to $(dirname "$1"); wait for it or end it first"
}

# stage OUTPUT MESSAGE COMMAND...: run COMMAND, which has to make OUTPUT, unless it is there already.
stage() {
    local output=$1 message=$2 start=$SECONDS
    shift 2
    if [ -e "$output" ]; then
        say "[have] $message: $output"
        return
    fi
    say "[....] $message"
    "$@"
    current_log=
    [ -e "$output" ] || die "$message: $output was not written"
    say "[done] $message: $output, $(duration $((SECONDS - start))) min"
}

# logged LOG COMMAND...: all output goes to LOG.
logged() {
    current_log=$1
    shift
    "$@" >"$current_log" 2>&1
}

# ------------------------------------------------------------------------------------------------ input

# find_set FOLDER SRC TGT PREFIX...: print the path of the first PREFIX for which both languages exist.
find_set() {
    local folder=$1 src=$2 tgt=$3 prefix
    shift 3
    for prefix in "$@"; do
        if [ -e "$folder/$prefix.$src" ] || [ -e "$folder/$prefix.$tgt" ]; then
            [ -e "$folder/$prefix.$src" ] || die "$folder/$prefix.$src: no such file, but $prefix.$tgt is there; add it, or end NAME with the right languages"
            [ -e "$folder/$prefix.$tgt" ] || die "$folder/$prefix.$tgt: no such file, but $prefix.$src is there; add it, or end NAME with the right languages"
            say "$folder/$prefix"
            return
        fi
    done
    die "$folder/$1.$src: no such file (looked for: $*); put it there, or end NAME with the right languages"
}

# find_test_set FOLDER SRC TGT: the same for test, or else the only test*.SRC.
find_test_set() {
    local folder=$1 src=$2 tgt=$3 found=() file
    if [ -e "$folder/test.$src" ] || [ -e "$folder/test.$tgt" ]; then
        find_set "$folder" "$src" "$tgt" test
        return
    fi
    for file in "$folder"/test*."$src"; do
        [ -e "$file" ] && found+=("$(basename "$file" ".$src")")
    done
    [ "${#found[@]}" -le 1 ] || die "$folder: several test sets (${found[*]}); choose one: TEST=${found[0]}"
    find_set "$folder" "$src" "$tgt" "${found[0]:-test}"
}

# check_pair PREFIX SRC TGT: both files have text, UTF-8, and the same number of lines.
check_pair() {
    local file lines=() language
    for language in "$2" "$3"; do
        file=$1.$language
        [ -f "$file" ] && [ -r "$file" ] || die "$file: not a readable file; give plain text, one sentence per line"
        iconv -f UTF-8 -t UTF-8 "$file" >/dev/null 2>&1 || die "$file: not UTF-8; convert it: iconv -f OLD -t UTF-8"
        grep -q '[^[:space:]]' "$file" || die "$file: has no text; put one sentence on each line"
        lines+=("$(awk 'END { print NR }' "$file")")  # wc would not count a last line without its line end
    done
    [ "${lines[0]}" -eq "${lines[1]}" ] || die "$1.$2 has ${lines[0]} lines but $1.$3 has ${lines[1]}; line n of one must be the translation of line n of the other"
}

# ------------------------------------------------------------------------------------------------ subwords

# learn_subwords MODEL KIND SIZE FILE...: one sentencepiece model for all files; KIND is bpe or unigram. Text is kept as it
# is: case, no normalisation.
learn_subwords() {
    python - "$@" <<'PY'
import os
import sys

import sentencepiece

model, kind, size, *files = sys.argv[1:]
sentencepiece.SentencePieceTrainer.train(
    input=files,
    model_prefix=model + ".partial",
    model_type=kind,
    vocab_size=int(size),
    hard_vocab_limit=False,  # a small corpus has fewer
    character_coverage=1.0 if int(size) < 5000 else 0.9999,
    normalization_rule_name="identity",
    input_sentence_size=1_000_000,
    shuffle_input_sentence=True,
)
os.remove(model + ".partial.vocab")
os.replace(model + ".partial.model", model)
PY
}

# apply_subwords MODEL IN OUT
apply_subwords() {
    python - "$@" <<'PY'
import sys

import sentencepiece

model, source, target = sys.argv[1:]
processor = sentencepiece.SentencePieceProcessor(model_file=model)
with open(source, encoding="utf-8", newline="\n") as lines, open(target, "w", encoding="utf-8", newline="\n") as out:
    for line in lines:
        # One kind of white space: anything else that breaks a line, such as U+2028 or a carriage return, would break pairs.
        pieces = processor.encode(" ".join(line.split()), out_type=str)
        out.write(" ".join(pieces) + "\n")
PY
}

# ------------------------------------------------------------------------------------------------ training

# show_training MINUTES: fairseq-train's log on stdin, one moving line on the terminal, or now and then a line in a file.
show_training() {
    local limit=$1 line shown=-100 text
    while IFS= read -r line; do
        if [[ $line =~ \|\ train_inner\ \|\ epoch\ 0*([0-9]+):\ +([0-9]+)\ /\ ([0-9]+)\ .*\ ?loss=([0-9.]+), ]]; then
            text="epoch ${BASH_REMATCH[1]}, batch ${BASH_REMATCH[2]} of ${BASH_REMATCH[3]}, loss $(value loss "$line"), $(value wps "$line") words/s, $(duration "$(value wall "$line")")"
            [ "$limit" = 0 ] || text+=" of at most $(duration "$(awk -v m="$limit" 'BEGIN { printf "%d", 60 * m }')") min"
            if [ -t 1 ]; then
                printf '\r       %s\033[K' "$text"
            elif [ $((SECONDS - shown)) -ge 20 ]; then
                shown=$SECONDS
                say "       $text"
            fi
        elif [[ $line =~ \|\ valid\ \|\ epoch\ 0*([0-9]+)\ .*\|\ loss\ ([0-9.]+)\ .*\|\ num_updates\ ([0-9]+) ]]; then
            text="       epoch ${BASH_REMATCH[1]}, ${BASH_REMATCH[3]} updates: loss on the validation set ${BASH_REMATCH[2]}"
            [[ $line =~ \|\ mean_accepted_tokens\ ([0-9.]+) ]] && text+=", mean accepted tokens ${BASH_REMATCH[1]}"
            if [ -t 1 ]; then printf '\r\033[K'; fi
            say "$text"
        fi
    done
    if [ -t 1 ]; then printf '\r\033[K'; fi
}

# value NAME LINE: the whole part of NAME=... (two decimals for the loss) in a line of fairseq's log
value() {
    if [[ $2 =~ [\ ,]$1=([0-9]+)(\.[0-9][0-9]?)? ]]; then
        if [ "$1" = loss ]; then printf '%s' "${BASH_REMATCH[1]}${BASH_REMATCH[2]}"; else printf '%s' "${BASH_REMATCH[1]}"; fi
    else
        printf '0'
    fi
}

# train FOLDER LOG MINUTES COMMAND...: run or resume fairseq-train with its checkpoints in FOLDER.partial; FOLDER when done.
# It ends after MINUTES of training, those before an interruption included; 0 is no limit.
train() {
    local folder=$1 minutes=$3
    current_log=$2
    shift 3
    mkdir -p "$folder.partial"
    mend_last_checkpoint "$folder.partial"
    if [ -e "$folder.partial/checkpoint_last.pt" ]; then say "       going on from $folder.partial/checkpoint_last.pt"; fi
    "$@" --save-dir "$folder.partial" --no-epoch-checkpoints --keep-interval-updates 1 \
        --stop-time-hours "$(awk -v m="$minutes" 'BEGIN { print m / 60 }')" \
        --log-format simple --log-interval "$LOG_INTERVAL" 2>&1 | tee -a "$current_log" | show_training "$minutes"
    rm -f "$folder.partial"/checkpoint_[0-9]*.pt
    mv "$folder.partial" "$folder"
}

# count_updates EPOCHS MAX_TOKENS SOURCE TARGET: about how many updates fairseq makes of two files of subwords. Its batches
# hold sentences of one length, so hardly any padding.
count_updates() {
    paste "$3" "$4" | awk -F '\t' -v epochs="$1" -v max_tokens="$2" '
        { source = split($1, unused, " "); target = split($2, unused, " "); tokens += (source > target ? source : target) + 1 }
        END { printf "%d\n", epochs * tokens / max_tokens + 1 }'
}

# fairseq copies checkpoint_best.pt to checkpoint_last.pt; a kill in between leaves a broken copy, which it could not resume from.
mend_last_checkpoint() {
    local file
    for file in "$1"/checkpoint_last.pt "$1"/checkpoint_best.pt; do
        [ -e "$file" ] || continue
        python -m zipfile --test "$file" >/dev/null 2>&1 || rm "$file"
    done
    if [ -e "$1/checkpoint_best.pt" ] && [ ! -e "$1/checkpoint_last.pt" ]; then
        cp "$1/checkpoint_best.pt" "$1/checkpoint_last.pt.partial"
        mv "$1/checkpoint_last.pt.partial" "$1/checkpoint_last.pt"
    fi
}

# ------------------------------------------------------------------------------------------------ distillation

# show_decoding TOTAL: fairseq-generate's output on stdin, the number of sentences on the terminal.
show_decoding() {
    local every=$(($1 / 5 + 1)) format='       %d of %d sentences\n'
    if [ -t 1 ]; then every=100 format='\r       %d of %d sentences\033[K'; fi
    awk -v total="$1" -v every="$every" -v format="$format" \
        '/^H-/ && (++n % every == 0 || n == total) { printf format, n, total; fflush() }'
    if [ -t 1 ]; then printf '\r\033[K'; fi
}

# pair_hypotheses GENERATED SOURCE OUT_SOURCE OUT_TARGET: order the H- lines of fairseq-generate as in SOURCE, one per line of it.
# Sentences that it skipped for their length are left out on both sides.
pair_hypotheses() {
    awk -F '\t' -v out_source="$3" -v out_target="$4" '
        NR == FNR { if (/^H-/) hypothesis[substr($1, 3)] = $3; next }
        (FNR - 1) in hypothesis { print > out_source; print hypothesis[FNR - 1] > out_target }
    ' "$1" "$2"
    [ -s "$4" ] || die "$1: holds no hypotheses; remove it and run again"
}

# ------------------------------------------------------------------------------------------------ measuring

# measure_decoding CELL DATA MODEL SUBSET OPTIONS...: decode with fairseq-generate, then write CELL: BLEU, tokens, iterations and
# mean accepted tokens in one line. Output and messages are kept beside it.
measure_decoding() {
    local cell=$1 data=$2 model=$3 subset=$4 bleu counts
    current_log=$cell.log
    shift 4
    fairseq-generate "$data" --user-dir fairseq_plugins --task spec_dec --path "$model" --gen-subset "$subset" \
        --remove-bpe sentencepiece --scoring sacrebleu --skip-invalid-size-inputs-valid-test --log-format none "$@" >"$cell.out" 2>"$cell.log"
    bleu=$(sed -n 's/^Generate .*BLEU[^=]* = \([0-9.]*\).*/\1/p' "$cell.out")
    counts=$(sed -n 's/.* sentences, \([0-9]*\) tokens, \([0-9]*\) iterations, \([0-9.]*\) mean accepted tokens.*/\1 \2 \3/p' "$cell.log")
    [ -n "$bleu" ] && [ -n "$counts" ] || die "$cell.out: fairseq-generate gave no BLEU or no counts; see $cell.log"
    printf '%s %s\n' "$bleu" "$counts" >"$cell.partial"
    mv "$cell.partial" "$cell"
}
