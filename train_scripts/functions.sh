# shellcheck shell=bash
# Shared by the recipes in this folder, to be sourced: messages, stages, input checks, text, training with progress, and the path
# that all recipes take from text to a measured drafter (run_recipe). What is easier in Python is in tools/.
#
# A stage writes under a name that ends in .partial and renames at the end, so what has its final name is complete,
# and a recipe that is started again goes on where it was interrupted.

# Decimal points in every country; text is UTF-8 throughout.
export LC_ALL=C PYTHONUTF8=1

# Threads that wait sleep instead of spinning: where anything else runs on the same cores, spinning slows training down up to
# seven times.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}

# Memory that was freed is kept for the next update: asking the system for every large tensor anew costs a fifth of the time.
export MALLOC_MMAP_THRESHOLD_=${MALLOC_MMAP_THRESHOLD_:-4294967296} MALLOC_TRIM_THRESHOLD_=${MALLOC_TRIM_THRESHOLD_:-4294967296}

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

# lock FILE: let no second run write to the same places; LOCK_SECONDS for one that is just ending. Children inherit the lock, so it
# also finds a run that was orphaned.
lock() {
    command -v flock >/dev/null || return 0
    exec 9>"$1"
    flock --wait "${LOCK_SECONDS:-5}" 9 || die "another run is writing to $(dirname "$1"); wait for it or end it first"
}

# stage OUTPUT MESSAGE COMMAND...: run COMMAND, which has to make OUTPUT, unless it is there already.
stage() {
    local output=$1 message=$2 start=$SECONDS
    shift 2
    if [ -n "$dry_run" ]; then
        say "# $message: $output"
        "$@"
        say
        return
    fi
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

# perform COMMAND...: run it, or with --dry-run print it.
dry_run=
perform() {
    if [ -n "$dry_run" ]; then printf '%q ' "$@" && say; else "$@"; fi
}

# perform_to FILE COMMAND...: the same, with the output in FILE.
perform_to() {
    local file=$1
    shift
    if [ -n "$dry_run" ]; then printf '%q ' "$@" && say ">$file"; else "$@" >"$file"; fi
}

# logged LOG COMMAND...: all output goes to LOG.
logged() {
    if [ -n "$dry_run" ]; then
        shift
        perform "$@"
        return
    fi
    current_log=$1
    shift
    "$@" >"$current_log" 2>&1
}

# What is easier in Python: "${tool[@]}" NAME ARGUMENTS..., from the root of the repository.
tool=(python -m train_scripts.tools)

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

# check_origin FOLDER ORIGIN: FOLDER is not to be made of one text and go on with another. Remembers ORIGIN, a few words, in it.
check_origin() {
    local file=$1/origin.txt
    if [ ! -e "$file" ]; then say "$2" >"$file"; fi
    [ "$(cat "$file")" = "$2" ] ||
        die "NAME=$NAME: $1 was made from $(cat "$file"); choose another NAME, or remove $1, $models and $results"
}

# fetch URL FILE BYTES [SHA256]: download FILE unless it is there; BYTES is the least it must have. Where no checksum is
# published only the size is checked.
fetch() {
    local url=$1 file=$2 bytes=$3 checksum=${4:-}
    if [ -n "$dry_run" ]; then
        perform curl --fail --location --continue-at - --output "$file" "$url"
        return
    fi
    if [ -e "$file" ]; then return; fi
    mkdir -p "$(dirname "$file")"
    curl --fail --location --silent --show-error --continue-at - --output "$file.partial" "$url" || die "$url: could not be downloaded; see above, or give local text with DATA=folder"
    [ "$(wc -c <"$file.partial")" -ge "$bytes" ] || die "$file.partial: has $(wc -c <"$file.partial") bytes, expected at least $bytes; remove it and try again, or give local text with DATA=folder"
    if [ -n "$checksum" ]; then
        printf '%s  %s\n' "$checksum" "$file.partial" | sha256sum --check --quiet >/dev/null || die "$file.partial: its checksum is not the published one; remove it and try again"
    fi
    mv "$file.partial" "$file"
}

# ------------------------------------------------------------------------------------------------ text

# from_tar OUT ARCHIVE:MEMBER...: members of archives (tar, or zip by their name) one after the other, cleaned.
from_tar() {
    local out=$1 item
    shift
    if [ -n "$dry_run" ]; then
        perform from_tar "$out" "$@"
        return
    fi
    for item in "$@"; do
        case $item in
            *.zip:*) unzip -p "${item%%:*}" "${item#*:}" ;;
            *) tar -xzOf "${item%%:*}" "${item#*:}" ;;
        esac
    done >"$out.whole"
    "${tool[@]}" clean-lines "$out.whole" "$out"
    rm "$out.whole"
}

# from_sacrebleu SET PAIR SIDE OUT: a published test set; sacrebleu checks its checksum. SIDE is src or ref.
from_sacrebleu() {
    perform_to "$4.whole" sacrebleu --test-set "$1" --language-pair "$2" --echo "$3"
    perform "${tool[@]}" clean-lines "$4.whole" "$4"
    perform rm "$4.whole"
}

# moses_tokens LANGUAGE IN OUT: punctuation normalised, split into Moses tokens with hyphens apart, as fairseq's WMT scripts do.
moses_tokens() { sacremoses --quiet --language "$1" --processes "${WORKERS:-1}" normalize -c tokenize -a <"$2" >"$3"; }

# learn_moses_bpe CODES SIZE FILE...: joint BPE (Sennrich et al. 2016) of tokenised files.
learn_moses_bpe() {
    local codes=$1 size=$2
    shift 2
    cat "$@" | subword-nmt learn-bpe --symbols "$size" --num-workers "${WORKERS:-1}" >"$codes.partial" 2>/dev/null
    mv "$codes.partial" "$codes"
}

# ------------------------------------------------------------------------------------------------ training

# show_training MINUTES [END]: fairseq-train's log on stdin, one moving line on the terminal, or now and then a line in a file. END
# says when training ends, such as "20 epochs" or "300 updates"; with it the time that is left is shown, guessed from the speed so far.
show_training() {
    local limit=$1 until=${2:-} line shown=-100 text end unit first=''
    end=${until%% *} unit=${until##* }
    while IFS= read -r line; do
        if [[ $line =~ \|\ train_inner\ \|\ epoch\ 0*([0-9]+):\ +([0-9]+)\ /\ ([0-9]+)\ .*\ ?loss=([0-9.]+), ]]; then
            local epoch=${BASH_REMATCH[1]} batch=${BASH_REMATCH[2]} batches=${BASH_REMATCH[3]} made total updates
            updates=$(value num_updates "$line")
            text="epoch $epoch"
            case $unit in
                epochs) text+=" of $end" made=$(((epoch - 1) * batches + batch)) total=$((end * batches)) ;;
                updates) made=$updates total=$end ;;
                *) made=0 total=0 ;;
            esac
            text+=", batch $batch of $batches, loss $(value loss "$line"), $(value wps "$line") words/s, $(duration "$(value wall "$line")")"
            [ "$limit" = 0 ] || text+=" of at most $(duration "$(awk -v m="$limit" 'BEGIN { printf "%d", 60 * m }')") min"
            if [ "$total" -gt 0 ]; then
                [ -n "$first" ] || first="$made $SECONDS"
                if [ "$made" -gt "${first% *}" ]; then
                    text+=", about $(duration $(((SECONDS - ${first#* }) * (total - made) / (made - ${first% *})))) min left"
                fi
            fi
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

# end_of COMMAND...: when fairseq-train ends by itself, for show_training; of several --max-epoch and --max-update the last counts.
end_of() {
    local end=''
    while [ $# -gt 1 ]; do
        case $1 in
            --max-epoch) end="$2 epochs" ;;
            --max-update) if [ "$2" != 0 ]; then end="$2 updates"; fi ;;
        esac
        shift
    done
    say "$end"
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
# It ends after MINUTES of training, those before an interruption included; 0 is no limit. The last KEEP_CHECKPOINTS stay.
train() {
    train_some "$@"
    if [ -n "$dry_run" ]; then return; fi
    if [ "${KEEP_CHECKPOINTS:-0}" -eq 0 ]; then rm -f "$1.partial"/checkpoint_[0-9]*.pt; fi
    mv "$1.partial" "$1"
}

# train_some: the same, to be gone on with: what it leaves is FOLDER.partial.
train_some() {
    local folder=$1 minutes=$3 keep=${KEEP_CHECKPOINTS:-0} options
    options=(--save-dir "$folder.partial" --no-epoch-checkpoints --keep-interval-updates $((keep > 0 ? keep : 1))
        --stop-time-hours "$(awk -v m="$minutes" 'BEGIN { print m / 60 }')" --log-format simple --log-interval "$LOG_INTERVAL")
    if [ -n "$dry_run" ]; then
        shift 3
        perform "$@" "${options[@]}"
        return
    fi
    current_log=$2
    shift 3
    mkdir -p "$folder.partial"
    mend_last_checkpoint "$folder.partial"
    if [ -e "$folder.partial/checkpoint_last.pt" ]; then say "       going on from $folder.partial/checkpoint_last.pt"; fi
    "$@" "${options[@]}" 2>&1 | tee -a "$current_log" | show_training "$minutes" "$(end_of "$@")"
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

# ------------------------------------------------------------------------------------------------ the path of a recipe
#
# text -> binarise -> [teacher -> decode -> merge ->] verifier -> [decode -> merge ->] drafter [-> blockwise] -> sweep -> test ->
# table -> card
#
# With a teacher of its own, verifier and drafter both learn from its translations (Seq-KD by a shared teacher: GAD section 5.1);
# without, or with DRAFTER_DATA=verifier, the drafter learns from the verifier's.
#
# With BLOCKWISE_HEADS the verifier also gets heads for blockwise decoding, trained on the drafter's data.
#
# With FROM=name of a finished run, a second round: verifier and drafter of that run go on together, with what the verifier says with
# several beams, so that its states say more of what comes next; then the drafter by itself with what the new verifier says.
#
# A recipe sets what is listed in `run_recipe`, and a function `get_text` that writes {train,valid,test}.{$src,$tgt}
# under $1. All in capitals can be set from the environment.

# What most recipes have none of.
task_options=() search_options=() distil_options=() teacher_options=() metric_options=() decoders=() test_references=()
blockwise_training=()
licence=unknown origin=''

# A recipe that has fewer of them says so before `recipe_options`.
recipe_stages=text,binarise,teacher,decode,merge,verifier,drafter,blockwise,sweep,test,table,card

# Hyper-parameters of the papers: GAD Table 10, left (the verifier) and right (the drafter); the same in SpecDec Table 7 and
# Aggressive Decoding Table 13. β2 of the verifier is the usual 0.98 (Vaswani et al. 2017); the tables say 0.99. Dropout: the
# tables give 0.1 to 0.3 to choose from.
# shellcheck disable=SC2034  # used by the recipes
{
    paper_verifier=(
        --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --optimizer adam --adam-betas '(0.9, 0.98)' --lr 1e-3
        --lr-scheduler inverse_sqrt --warmup-init-lr 1e-7 --warmup-updates 4000 --weight-decay 0.00001 --clip-norm 3.0
        --max-update 100000
    )
    paper_drafter=(
        --label-smoothing 0.1 --optimizer adam --adam-betas '(0.9, 0.999)' --adam-eps 1e-6 --lr 5e-4
        --lr-scheduler inverse_sqrt --warmup-init-lr 1e-7 --warmup-updates 10000 --weight-decay 0.01 --clip-norm 5.0
        --max-update 300000
    )
    paper_verifier_tokens=$((20000 * 4 * 8)) # max tokens x update frequency x GPUs
    paper_drafter_tokens=$((4096 * 4 * 8))
}

# no_options "$@": --help prints the head of the script, all else is refused.
no_options() {
    [ $# -gt 0 ] || return 0
    case $1 in
        -h | --help) print_head "train_scripts/$(basename "$0")" && exit 0 ;;
        *) die "$1: no such option; settings are variables (NAME=... $(basename "$0")), and there is --help" ;;
    esac
}

# print_head SCRIPT: the comment that it begins with.
print_head() { awk 'NR > 1 && !/^#/ { exit } NR > 1 && !/^#SBATCH/ { sub(/^# ?/, ""); print }' "$1"; }

# recipe_options "$@": read --dry-run, --skip STAGE,STAGE and --only STAGE,STAGE; --help prints the head of the recipe. Goes to
# the root of the repository and finds its programs and GPUs.
recipe_options() {
    if [ -n "${DATA:-}" ] && [ -d "$DATA" ]; then DATA=$(cd "$DATA" && pwd); fi
    if [ -n "${BART:-}" ] && [ -d "$BART" ]; then BART=$(cd "$BART" && pwd); fi
    recipe=$(cd "$(dirname "$0")" && pwd)/$(basename "$0")
    cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
    if [ -d .venv/bin ]; then PATH=$PWD/.venv/bin:$PATH; fi
    : "${GPUS:=$(nvidia-smi --list-gpus 2>/dev/null | wc -l || true)}"
    skip='' only=''
    while [ $# -gt 0 ]; do
        case $1 in
            --dry-run) dry_run=1 ;;
            --skip | --only)
                [ $# -ge 2 ] || die "$1: of which stages? choose from $recipe_stages"
                local list name
                IFS=, read -ra list <<<"$2"
                for name in "${list[@]}"; do
                    [[ ,$recipe_stages, == *,$name,* ]] || die "$1 $name: no such stage; choose from $recipe_stages"
                done
                if [ "$1" = --skip ]; then skip=$2; else only=$2; fi
                shift
                ;;
            -h | --help)
                print_head "$recipe"
                exit 0
                ;;
            *) die "$1: no such option; there are --dry-run, --skip STAGES, --only STAGES and --help" ;;
        esac
        shift
    done
    [ -z "${DATA:-}" ] || [ -d "$DATA" ] || die "DATA=$DATA: no such folder; give one with the text: train.*, valid.* and test.*"
}

# step STAGE OUTPUT MESSAGE COMMAND...: a stage that --skip and --only can leave out.
step() {
    local name=$1
    shift
    if wanted "$name"; then stage "$@"; fi
}

wanted() {
    [[ ,$recipe_stages, == *,$1,* ]] || return 1
    if [ -n "$only" ]; then [[ ,$only, == *,$1,* ]]; else [[ ,$skip, != *,$1,* ]]; fi
}

# batch TOKENS MAX_TOKENS: options for updates of TOKENS in all, of at most MAX_TOKENS at once on each GPU.
batch() {
    local processes=$((GPUS > 0 ? GPUS : 1)) at_once
    at_once=$(($2 * processes < $1 ? $2 : $1 / processes))
    say "--max-tokens $at_once --update-freq $((($1 + at_once * processes / 2) / (at_once * processes)))"
}

# The drafter's own options, in one place. DRAFTER=features reads the verifier's states, with a few layers and without glancing;
# DRAFTER=tokens is the papers' (a decoder that reads the output so far), except that it shares the verifier's encoder.
# DRAFTER_OPTIONS adds more.
set_drafter_options() {
    drafter_options=(
        --init-decoder-from "$models/verifier.pt" --activation-fn "$ACTIVATION" --src-embedding-copy
        --blocks-per-sentence "$BLOCKS_PER_SENTENCE"
        --best-checkpoint-metric mean_accepted_tokens --maximize-best-checkpoint-metric
    )
    case $DRAFTER in
        tokens) drafter_options+=(--share-encoder) ;;
        features)
            drafter_options+=(--drafter-context features --drafter-layers "$DRAFTER_LAYERS")
            drafter_options+=(--position-decay 3 --glancing-start 0 --glancing-end 0)
            ;;
        *) die "DRAFTER=$DRAFTER: choose from tokens, features" ;;
    esac
    local more
    read -ra more <<<"${DRAFTER_OPTIONS:-}"
    drafter_options+=("${more[@]}")
}

# small_models: options of models for little data, where the papers have no numbers: Adam's betas and label smoothing are those of
# Vaswani et al. 2017, all else is ours.
small_models() {
    local size training verifier_batch drafter_batch
    size=(
        --encoder-layers "$LAYERS" --encoder-embed-dim "$WIDTH" --encoder-ffn-embed-dim "$FFN_WIDTH" --encoder-attention-heads "$HEADS"
        --decoder-layers "$LAYERS" --decoder-embed-dim "$WIDTH" --decoder-ffn-embed-dim "$FFN_WIDTH" --decoder-attention-heads "$HEADS"
        --share-all-embeddings
    )
    training=(
        --optimizer adam --adam-betas '(0.9, 0.98)' --lr-scheduler cosine --warmup-updates "$WARMUP_UPDATES"
        --label-smoothing 0.1 --clip-norm 1.0
    )
    read -ra verifier_batch <<<"$(batch "$VERIFIER_TOKENS" "$MAX_TOKENS")"
    read -ra drafter_batch <<<"$(batch "$DRAFTER_TOKENS" "$MAX_TOKENS")"
    verifier_options=(
        --task translation --arch transformer "${size[@]}" --criterion label_smoothed_cross_entropy "${training[@]}"
        "${verifier_batch[@]}" --lr "$VERIFIER_LR" --dropout "$VERIFIER_DROPOUT" --max-update "$VERIFIER_UPDATES"
    )
    teacher_options=("${verifier_options[@]}")
    drafter_training=(
        --arch block_nat_tiny "${size[@]}" "${training[@]}"
        "${drafter_batch[@]}" --lr "$DRAFTER_LR" --dropout "$DRAFTER_DROPOUT" --max-update "$DRAFTER_UPDATES"
        --warmup-updates "$((DRAFTER_UPDATES / 15))" # it begins as a copy of the verifier's layers
    )
    blockwise_training=("${training[@]}" "${verifier_batch[@]}" --lr "$VERIFIER_LR" --max-update "$VERIFIER_UPDATES")
}

# need_data FILES: DATA=folder has to be given; a dry run goes on with a name for it.
need_data() {
    if [ -z "${DATA:-}" ] && [ -n "$dry_run" ]; then DATA=FOLDER; fi
    [ -n "${DATA:-}" ] || die "DATA is missing; give a folder with $1"
}

# find_text: where the sets of DATA=folder are (text_sets), which are checked. TEST=name chooses among several test sets.
find_text() {
    local prefix
    if [ -n "$dry_run" ] && [ ! -d "$DATA" ]; then
        text_sets=("$DATA/train" "$DATA/valid" "$DATA/${TEST:-test}")
        return
    fi
    text_sets=() # one after the other: a set that is refused ends the recipe
    text_sets+=("$(find_set "$DATA" "$src" "$tgt" train)")
    text_sets+=("$(find_set "$DATA" "$src" "$tgt" valid val dev tune)")
    if [ -n "${TEST:-}" ]; then
        text_sets+=("$(find_set "$DATA" "$src" "$tgt" "$TEST")")
    else
        text_sets+=("$(find_test_set "$DATA" "$src" "$tgt")")
    fi
    for prefix in "${text_sets[@]}"; do check_pair "$prefix" "$src" "$tgt"; done
}

# copy_text FOLDER: the text of DATA=folder, for `get_text`.
copy_text() {
    local names=(train valid test) i language files=()
    find_text
    for i in 0 1 2; do
        for language in "$src" "$tgt"; do files+=("${text_sets[$i]}.$language" "$1/${names[$i]}.$language"); done
    done
    perform "${tool[@]}" clean-lines "${files[@]}"
}

# run_recipe: all stages. The recipe has set
#   NAME, src, tgt                        name of the results, suffixes of the text files
#   SUBWORDS                              unigram or bpe (sentencepiece, raw text), moses (Moses tokens, BPE) or gpt2 (BART's)
#   VOCABULARY, MAX_LENGTH, MAX_RATIO     number of subwords; which training pairs are left out (tool clean-pairs)
#   TEACHERS, teacher_options             number of teachers to train, 0 for none, and their options
#   DRAFTER_DATA                          whose translations the drafter learns from: teacher, or verifier (greedy ones)
#   verifier_options, drafter_training    options of fairseq-train; blockwise_training where it can have BLOCKWISE_HEADS
#   BLOCK_SIZE, BLOCKS_PER_SENTENCE       drafting: k, and training blocks per sentence
#   LANGUAGE_OF_TARGET                    for Moses tokens and sacreBLEU
# and where it needs them
#   task_options                          of the task, for every command
#   distil_options, search_options        of decoding: by the teacher, and on the validation and test sets
#   metric_options, test_references       of spec-dec-metrics; several references
#   decoders                              to test besides the usual
#   FROM                                  name of the run to go on from, in TUNE_UPDATES (DRAFTER_UPDATES)
#   COMPARED                              rows of the table of decoders, all by default: see spec-dec-compare --decoders
#   licence                               of the data, for the model card
#   origin                                what the text comes from, where NAME is not to go on with another
# Settings of all recipes: MINUTES or TEACHER_MINUTES, VERIFIER_MINUTES, DRAFTER_MINUTES, BLOCKWISE_MINUTES of training at most
# (0: any); DRAFTER_EPOCHS instead of a number of updates; FIRST_UPDATES of models for a first table (0: none), where the recipe has
# that stage; BLOCKWISE_HEADS (0: no such model); FP16=0 for full precision on a GPU;
# DECODING_THREADS for the table of decoders (all by default).
run_recipe() {
    : "${AVERAGE:=10}" "${SEED:=1}" "${MINUTES:=0}" "${FIRST_UPDATES:=0}" "${LOG_INTERVAL:=100}" "${SAVE_INTERVAL_UPDATES:=1000}" "${TENSORBOARD:=1}"
    : "${DISTIL_DECODER:=fast-beam}" "${DISTIL_BEAM:=5}" "${DISTIL_MAX_TOKENS:=12000}" "${DISTIL_RATIO:=}" "${KEEP_RAW:=}"
    : "${BLOCKS_PER_SENTENCE:=4}" "${ACTIVATION:=relu}" "${MAX_LENGTH:=0}" "${MAX_RATIO:=0}" "${WORKERS:=$(nproc)}"
    : "${DRAFTER:=features}" "${DRAFTER_LAYERS:=2}" "${DRAFTER_DATA:=teacher}" "${FROM:=}" "${TUNE_UPDATES:=}"
    [[ $DRAFTER_DATA =~ ^(teacher|verifier)$ ]] || die "DRAFTER_DATA=$DRAFTER_DATA: choose from teacher, verifier"
    : "${TEACHER_MINUTES:=$MINUTES}" "${VERIFIER_MINUTES:=$MINUTES}" "${DRAFTER_MINUTES:=$MINUTES}" "${BLOCKWISE_MINUTES:=$MINUTES}"
    : "${DRAFTER_EPOCHS:=}" "${BLOCKWISE_HEADS:=0}" "${FP16:=1}" "${DECODING_THREADS:=}"
    [ "$BLOCKWISE_HEADS" = 0 ] || [ ${#blockwise_training[@]} -gt 0 ] || die "BLOCKWISE_HEADS=$BLOCKWISE_HEADS: this recipe has no options to train them with; leave it out"
    : "${TOP_BETAS:=1,3,5}" "${TAUS:=1,2,3,4,5}" "${SWEEP_SENTENCES:=}" "${REPEATS:=3}" "${TIMING_SENTENCES:=100}"
    bin=data-bin/$NAME models=checkpoints/$NAME results=results/$NAME
    logs=$models/logs runs=$models/training raw=$bin/raw
    set_drafter_options
    if [ -n "$FROM" ]; then go_on_from "checkpoints/$FROM"; fi
    local extra
    # More options for all models, and for all decoding: of several the last one counts.
    read -ra extra <<<"${DECODING_OPTIONS:-}"
    distil_options+=("${extra[@]}")
    search_options+=("${extra[@]}")
    read -ra training_options <<<"${TRAINING_OPTIONS:-}"

    precision=()
    if [ "$GPUS" -gt 0 ] && [ "$FP16" != 0 ]; then precision=(--fp16); fi
    launch=(fairseq-train)
    if [ -n "${TORCHRUN:-}" ] || [ "$GPUS" -gt 1 ]; then
        read -ra launch <<<"${TORCHRUN:-torchrun --standalone --nproc-per-node $GPUS}"
        launch+=(--no-python fairseq-train)
    fi
    languages=(--source-lang "$src" --target-lang "$tgt")
    # To turn subwords back into raw text: D- lines of fairseq-generate.
    case $SUBWORDS in
        unigram | bpe) text_options=(--remove-bpe sentencepiece) ;;
        moses) text_options=(--remove-bpe --tokenizer moses) ;;
        gpt2) text_options=(--bpe gpt2 --gpt2-encoder-json "$BART/encoder.json" --gpt2-vocab-bpe "$BART/vocab.bpe") ;;
        *) die "SUBWORDS=$SUBWORDS: choose from unigram, bpe, moses, gpt2" ;;
    esac
    if [ -z "$dry_run" ]; then
        mkdir -p "$bin" "$models" "$logs" "$runs" "$results"
        # Jobs of an array decode side by side.
        if [ "$only" != decode ]; then lock "$models/.lock"; fi
        trap on_exit EXIT
        if [ -n "$origin" ]; then check_origin "$bin" "$origin"; fi
    fi
    say "Recipe $NAME: models in $models, logs in $logs, results in $results; $GPUS GPUs."

    step text "$raw" "get the text" make_text
    step binarise "$bin/dict.$tgt.txt" "cut into subwords and binarise" make_binarised
    local i
    if [ "$TEACHERS" -gt 0 ]; then
        for ((i = 1; i <= TEACHERS; i++)); do
            train_model teacher "teacher$i" "$bin" --seed "$((SEED + i))" "${teacher_options[@]}"
        done
        TEACHER=$(for ((i = 1; i <= TEACHERS; i++)); do printf ':%s' "$models/teacher$i.pt"; done)
        TEACHER=${TEACHER#:}
    fi
    if [ -z "${TEACHER:-}" ]; then
        if [ "$FIRST_UPDATES" != 0 ] && [ ! -e "$runs/verifier" ]; then
            step first "$results/first/table.md" "a first table, of models after $FIRST_UPDATES updates" first_table
        fi
        train_model verifier verifier "$bin" --seed "$SEED" "${verifier_options[@]}"
        distil_for_drafter "$DISTIL_DECODER"
    elif [ "$DRAFTER_DATA" = verifier ]; then
        distil "$TEACHER" "$DISTIL_DECODER" taught
        if [ -n "$FROM" ]; then
            tune_verifier "$bin/taught"
        else
            train_model verifier verifier "$bin/taught" --seed "$SEED" "${verifier_options[@]}"
        fi
        distil_for_drafter greedy
    else
        distil "$TEACHER" "$DISTIL_DECODER" distilled
        train_model verifier verifier "$bin/distilled" --seed "$SEED" "${verifier_options[@]}"
    fi
    if [ -n "$DRAFTER_EPOCHS" ]; then limit_epochs; fi
    train_drafter drafter drafter "$models/verifier.pt" "$bin/distilled"
    if [ "$BLOCKWISE_HEADS" != 0 ]; then train_blockwise; fi
    step sweep "$results/sweep/sweep.json" "choose k, β and τ on the validation set" sweep
    step test "$results/test" "translate the test set and score it" measure_test
    step table "$results/table.md" "compare decoders on the test set" compare_decoders
    if wanted card; then drop_older "$models/README.md" "$results/table.md"; fi
    step card "$models/README.md" "write the model card" write_card
    if [ -z "$dry_run" ] && [ -e "$results/table.md" ]; then
        say
        cat "$results/table.md"
        say
        say "The table is also in $results/table.md and table.json; remove table.md to measure again."
    fi
    say "Finished in $(duration $SECONDS) min."
}

# go_on_from MODELS: settings of a second round.
go_on_from() {
    local file
    [ "$DRAFTER" = features ] || die "FROM=$FROM: trains verifier and drafter together, which DRAFTER=$DRAFTER cannot; leave DRAFTER out"
    for file in "$1/verifier.pt" "$1/drafter.pt" "data-bin/$FROM/raw"; do
        [ -e "$file" ] || [ -n "$dry_run" ] || die "FROM=$FROM: $file is missing; run the recipe with NAME=$FROM first"
    done
    TEACHERS=0 TEACHER=$1/verifier.pt DRAFTER_DATA=verifier
}

make_text() {
    perform rm -rf "$raw.partial"
    perform mkdir -p "$raw.partial"
    if [ -n "$FROM" ]; then perform cp "data-bin/$FROM/raw"/* "$raw.partial"; else get_text "$raw.partial"; fi
    perform mv "$raw.partial" "$raw"
}

# The dictionary is moved last: it says that all is there.
make_binarised() {
    local part=$bin/binarised.partial text=$raw set language file dictionary=(--joined-dictionary) files=()
    perform rm -rf "$part"
    perform mkdir -p "$part/tokens" "$part/text"
    if [ -n "$FROM" ]; then
        # Models that go on need the same subwords and dictionary.
        for file in "data-bin/$FROM/subwords.model" "data-bin/$FROM/bpe.codes"; do
            if [ -e "$file" ]; then perform cp "$file" "$bin"; fi
        done
        dictionary+=(--srcdict "data-bin/$FROM/dict.$src.txt")
    fi
    if [ "$SUBWORDS" = moses ]; then
        text=$part/tokens
        for set in train valid test; do
            for language in "$src" "$tgt"; do perform moses_tokens "$language" "$raw/$set.$language" "$text/$set.$language"; done
        done
        if [ ! -e "$bin/bpe.codes" ]; then perform learn_moses_bpe "$bin/bpe.codes" "$VOCABULARY" "$text/train.$src" "$text/train.$tgt"; fi
    elif [ "$SUBWORDS" = gpt2 ]; then
        dictionary=(--srcdict "$BART/dict.txt" --tgtdict "$BART/dict.txt")
    elif [ ! -e "$bin/subwords.model" ]; then
        logged "$logs/subwords.log" "${tool[@]}" learn-subwords "$bin/subwords.model" --kind "$SUBWORDS" --size "$VOCABULARY" "$raw/train.$src" "$raw/train.$tgt"
    fi
    for set in train valid test; do
        for language in "$src" "$tgt"; do
            case $SUBWORDS in
                moses) perform_to "$part/text/$set.$language" subword-nmt apply-bpe --codes "$bin/bpe.codes" --input "$text/$set.$language" ;;
                *) files+=("$text/$set.$language" "$part/text/$set.$language") ;;
            esac
        done
    done
    case $SUBWORDS in
        gpt2) perform "${tool[@]}" apply-gpt2-bpe "$BART" "${files[@]}" ;;
        unigram | bpe) perform "${tool[@]}" apply-subwords "$bin/subwords.model" "${files[@]}" ;;
    esac
    perform "${tool[@]}" clean-pairs "$part/text/train" "$part/text/clean" --languages "$src" "$tgt" --max-length "$MAX_LENGTH" --max-ratio "$MAX_RATIO"
    logged "$logs/preprocess.log" fairseq-preprocess "${languages[@]}" "${dictionary[@]}" --workers "$WORKERS" --destdir "$part" \
        --trainpref "$part/text/clean" --validpref "$part/text/valid" --testpref "$part/text/test"
    perform rm -rf "$part/tokens" "$part/text"
    if [ -z "$dry_run" ]; then mv "$part"/*.bin "$part"/*.idx "$part/dict.$src.txt" "$bin"; fi
    perform mv "$part/dict.$tgt.txt" "$bin"
    perform rm -rf "$part"
}

# training_command MODEL DATA OPTIONS...: the command that trains it, in `training_command`.
training_command() {
    local model=$1 data=$2 tensorboard=()
    shift 2
    if [ "$TENSORBOARD" != 0 ]; then tensorboard=(--tensorboard-logdir "$models/tensorboard/$model"); fi
    training_command=(
        "${launch[@]}" "$data" --user-dir fairseq_plugins "${languages[@]}" "${task_options[@]}"
        "${precision[@]}" "${tensorboard[@]}" --save-interval-updates "$SAVE_INTERVAL_UPDATES"
        --skip-invalid-size-inputs-valid-test "$@" "${training_options[@]}"
    )
}

# train_model STAGE MODEL DATA OPTIONS...: train, then average into $models/MODEL.pt.
train_model() {
    local name=$1 model=$2 minutes=${1^^}_MINUTES title=${2/#blockwise/blockwise heads} what="average the last checkpoints" training_command
    shift
    if [ "$AVERAGE" -eq 0 ]; then what="take the best checkpoint"; fi
    training_command "$@"
    KEEP_CHECKPOINTS=$AVERAGE step "$name" "$runs/$model" "train the $title" train "$runs/$model" "$logs/$model.log" "${!minutes}" \
        "${training_command[@]}"
    if wanted "$name"; then drop_older "$models/$model.pt" "$runs/$model/checkpoint_last.pt"; fi
    step "$name" "$models/$model.pt" "$what of the $title" average "$model"
}

# train_drafter STAGE MODEL VERIFIER DATA OPTIONS...
train_drafter() {
    local name=$1 model=$2 verifier=$3 data=$4
    shift 4
    train_model "$name" "$model" "$data" --seed "$SEED" --task spec_dec --criterion glat_loss --verifier-path "$verifier" \
        --block-size "$BLOCK_SIZE" "${drafter_training[@]}" "${drafter_options[@]}" "$@"
}

# tune_verifier DATA: the verifier of FROM learns with its drafter, as many updates as drafters have or TUNE_UPDATES. The drafter's
# training then goes on from there.
tune_verifier() {
    local from=checkpoints/$FROM both=verifier-with-drafter updates=()
    if [ -n "$TUNE_UPDATES" ]; then updates=(--max-update "$TUNE_UPDATES"); fi
    # Of several --init-decoder-from the last one counts.
    train_drafter verifier "$both" "$from/verifier.pt" "$1" --tune-verifier --init-decoder-from "$from/drafter.pt" "${updates[@]}"
    if wanted verifier; then drop_older "$models/verifier.pt" "$models/$both.pt"; fi
    step verifier "$models/verifier.pt" "part verifier and drafter" \
        perform "${tool[@]}" split-verifier "$models/$both.pt" "$from/verifier.pt" "$models/verifier.pt" "$models/tuned.pt"
    drafter_options+=(--init-decoder-from "$models/tuned.pt")
}

# first_verifier FILE: a verifier of FIRST_UPDATES updates.
first_verifier() {
    local training_command
    training_command verifier "$bin" --seed "$SEED" "${verifier_options[@]}"
    KEEP_CHECKPOINTS=$AVERAGE train_some "$runs/verifier" "$logs/verifier.log" "$VERIFIER_MINUTES" \
        "${training_command[@]}" --max-update "$FIRST_UPDATES"
    logged "$logs/first/average-verifier.log" spec-dec-average "$runs/verifier.partial/checkpoint_last.pt" --output "$1"
}

# first_table: the table of decoders after a few minutes. The verifier's training goes on from there; the drafter has learned from
# the text itself, and another one is trained for the verifier that comes out in the end.
first_table() {
    perform mkdir -p "$models/first" "$logs/first" "$runs/first" "$results/first"
    # A stage of its own: where training goes on fairseq adds an update, and the drafter has learned with the verifier as it was.
    step first "$models/first/verifier.pt" "train the verifier for $FIRST_UPDATES updates; later it goes on from there" \
        first_verifier "$models/first/verifier.pt"
    # What is made from here on is of no use to the other stages, and stands apart.
    local models=$models/first logs=$logs/first runs=$runs/first results=$results/first
    # shellcheck disable=SC2034  # train_model reads the minutes
    local drafter_options AVERAGE=0 FIRST_MINUTES=0 BLOCKWISE_HEADS=0 COMPARED="fairseq beam 5,greedy,gad" REPEATS=1
    set_drafter_options
    train_drafter first drafter "$models/verifier.pt" "$bin" --max-update "$FIRST_UPDATES" --warmup-updates "$((FIRST_UPDATES / 10))"
    compare_decoders
    if [ -n "$dry_run" ]; then return; fi
    say
    "${tool[@]}" short-table "$results/table.md"
    say
    say "The models of this table learned for some minutes only; it is made again with those that come now."
}

# limit_epochs: the drafter's learning rate may depend on the number of its updates, so epochs are counted as updates.
limit_epochs() {
    if [ -n "$dry_run" ]; then
        drafter_training+=(--max-update "UPDATES_OF_${DRAFTER_EPOCHS}_EPOCHS")
    elif wanted drafter && [ ! -e "$runs/drafter" ]; then
        local updates
        updates=$("${tool[@]}" count-updates "$bin/distilled" --languages "$src" "$tgt" --epochs "$DRAFTER_EPOCHS" --tokens "$DRAFTER_TOKENS")
        drafter_training+=(--max-update "$updates")
    fi
}

# train_blockwise: heads on the verifier. With the base frozen and an identity first head the output is the verifier's own (Stern et
# al. 2018, footnote 1). Its sizes are the verifier's.
train_blockwise() {
    train_model blockwise blockwise "$bin/distilled" --seed "$SEED" --task spec_dec --arch blockwise_transformer \
        --base-path "$models/verifier.pt" --freeze-base --identity-first-head --blockwise-heads "$BLOCKWISE_HEADS" \
        --criterion blockwise_loss --best-checkpoint-metric mean_accepted_tokens --maximize-best-checkpoint-metric \
        "${blockwise_training[@]}"
}

# drop_older FILE NEWER: the repository comes with models and cards: they are not those of a recipe that was run since.
drop_older() { if [ -z "$dry_run" ] && [ "$2" -nt "$1" ]; then rm -f "$1"; fi; }

# AVERAGE=0 takes the best checkpoint on the validation set instead.
average() {
    local from=("$runs/$1" --last "$AVERAGE")
    if [ "$AVERAGE" -eq 0 ]; then from=("$runs/$1/checkpoint_best.pt"); fi
    logged "$logs/average-$1.log" spec-dec-average "${from[@]}" --output "$models/$1.pt"
    if [ -z "$dry_run" ]; then rm -f "$runs/$1"/checkpoint_[0-9]*.pt; fi
}

# distil TEACHERS DECODER NAME: $bin/NAME, translations of the training and the validation set. DECODER may have options.
distil() {
    local distilled=$bin/$3 shards=$bin/$3-shards decoder merge=(--source-lang "$src" --target-lang "$tgt")
    if [ -n "$DISTIL_RATIO" ]; then merge+=(--max-length-ratio "$DISTIL_RATIO"); fi
    if [ -n "$KEEP_RAW" ]; then merge+=(--keep-raw); fi
    read -ra decoder <<<"$2"
    if wanted decode && [ ! -e "$distilled" ]; then
        say "[....] translate the training set with $1"
        perform spec-dec-distill decode "$bin" "${languages[@]}" --gen-subset train,valid --path "$1" --output "$shards" \
            --decoder "${decoder[@]}" --beam "$DISTIL_BEAM" --max-tokens "$DISTIL_MAX_TOKENS" \
            "${task_options[@]}" "${distil_options[@]}" "${precision[@]}"
    fi
    step merge "$distilled" "check, merge and binarise the translations" \
        perform spec-dec-distill merge "$bin" "${merge[@]}" --gen-subset train,valid --shards "$shards" \
        --destdir "$distilled" --workers "$WORKERS"
}

# distil_for_drafter DECODER: what the verifier says. Of what repeats itself without end the drafter is to know, too: there drafts save most.
distil_for_drafter() {
    local DISTIL_RATIO=
    distil "$models/verifier.pt" "$1" distilled
}

# Options that every decoding on the test and validation sets has.
decoding_options() {
    decoding=(
        "${languages[@]}" --task spec_dec --path "$models/verifier.pt" "${text_options[@]}"
        --skip-invalid-size-inputs-valid-test "${task_options[@]}" "${search_options[@]}"
        "${precision[@]}"
    )
}

sweep() {
    decoding_options
    local some=()
    if [ -n "$SWEEP_SENTENCES" ]; then some=(--sentences "$SWEEP_SENTENCES"); fi
    logged "$logs/sweep.log" spec-dec-sweep "$bin" "${decoding[@]}" --drafter-path "$models/drafter.pt" --gen-subset valid \
        --reference "$raw/valid.$tgt" --block-sizes "${BLOCK_SIZES:-$BLOCK_SIZE}" --top-betas "$TOP_BETAS" --taus "$TAUS" \
        "${some[@]}" --output "$results/sweep"
}

# recommended: lines NAME OPTIONS, the settings of gad++ that the sweep recommends: no_quality_loss and within_tolerance.
recommended() {
    if [ -n "$dry_run" ]; then
        say "no_quality_loss --decoder gad++ CHOSEN_BY_SWEEP"
        say "within_tolerance --decoder gad++ CHOSEN_BY_SWEEP"
    else
        "${tool[@]}" recommended "$results/sweep/sweep.json"
    fi
}

# Text and scores by decoder, in $results/test.
measure_test() {
    local name options lines
    decoding_options
    perform rm -rf "$results/test.partial"
    perform mkdir -p "$results/test.partial"
    test_decoder beam --decoder fast-beam --beam 5
    test_decoder greedy --decoder greedy
    test_decoder gad --decoder gad --drafter-path "$models/drafter.pt"
    lines=$(recommended)
    while [ -n "$lines" ] && read -r -u 3 -a options; do
        test_decoder "${options[@]}" --drafter-path "$models/drafter.pt"
    done 3<<<"$lines"
    for name in "${decoders[@]}"; do test_decoder "$name" --decoder "$name"; done
    perform mv "$results/test.partial" "$results/test"
}

# The table of decoders, in $results.
compare_decoders() {
    local options=() threads=()
    decoding_options
    if [ -n "${COMPARED:-}" ]; then options+=(--decoders "$COMPARED"); fi
    if [ "$BLOCKWISE_HEADS" != 0 ]; then options+=(--blockwise-path "$models/blockwise.pt"); fi
    if [ -n "$DECODING_THREADS" ]; then threads=(env "OMP_NUM_THREADS=$DECODING_THREADS"); fi
    perform_to "$logs/compare.log" "${threads[@]}" spec-dec-compare "$bin" "${decoding[@]}" --drafter-path "$models/drafter.pt" \
        --reference "$raw/test.$tgt" "${options[@]}" --repeats "$REPEATS" --timing-sentences "$TIMING_SENTENCES" --results "$results"
}

# test_decoder NAME OPTIONS...: text and scores of one decoder. Tokenised BLEU as in the papers, and sacreBLEU with signature.
test_decoder() {
    local out=$results/test.partial/$1 references=("$raw/test.$tgt")
    shift
    if [ ${#test_references[@]} -gt 0 ]; then references=("${test_references[@]}"); fi
    if [ -z "$dry_run" ]; then current_log=$out.log; fi
    perform_to "$out.out" fairseq-generate "$bin" --user-dir fairseq_plugins "${decoding[@]}" --gen-subset test --max-tokens "$DISTIL_MAX_TOKENS" "$@"
    perform_to "$out.txt" spec-dec-metrics --hypotheses "$out.out" --references "${references[@]}" --lang "$LANGUAGE_OF_TARGET" \
        "${metric_options[@]}" --json "$out.json"
}

# The card, and beside the models what they need to be used alone: dictionaries and subwords.
write_card() {
    local file
    for file in "$bin/dict.$src.txt" "$bin/dict.$tgt.txt" "$bin/subwords.model" "$bin/bpe.codes"; do
        if [ -n "$dry_run" ] || [ -e "$file" ]; then perform cp "$file" "$models"; fi
    done
    perform "${tool[@]}" model-card "$NAME" --languages "$src" "$tgt" --subwords "$SUBWORDS" --licence "$licence" --recipe "${FROM:+FROM=$FROM }train_scripts/$(basename "$recipe")"
}

# ------------------------------------------------------------------------------------------------ measuring

# find_trained NAME KIND...: where a recipe put data (raw, distilled) and models (verifier, drafter, blockwise); dies where one of
# the KINDs is missing.
# shellcheck disable=SC2034  # used by the scripts
find_trained() {
    local name=$1 kind models=checkpoints/$1
    shift
    raw=data-bin/$name distilled=data-bin/$name/distilled
    verifier=$models/verifier.pt drafter=$models/drafter.pt blockwise=$models/blockwise.pt
    for kind in raw "$@"; do
        [ -e "${!kind}" ] || die "NAME=$name: ${!kind} is missing; train the models first: make train (with the same NAME and DATA), or a recipe"
    done
}

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
