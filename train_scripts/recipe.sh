# shellcheck shell=bash disable=SC2034,SC2120,SC2154  # this file and the scripts use each other's variables
# Every script in this folder sources this file, with its own path in `script`. Settings are variables in capitals, from the
# environment or with a default in the script. All variables and functions are exported, and train_scripts/runner reads
# them. It calls two functions that a recipe may have: `get_text FOLDER` writes {train,valid,test}.{$src,$tgt} there, and
# `get_models` downloads the models that trainings start from.
set -euo pipefail

unset CDPATH # with it, cd goes elsewhere and prints where
for name in DATA BART; do # named from where the user is
    [ -d "${!name:-}" ] || continue
    folder=$(cd -- "${!name}" 2>/dev/null && pwd) || { printf 'error: %s=%s: cannot be read; make it readable\n' "$name" "${!name}" >&2; exit 2; }
    printf -v "$name" %s "$folder"
done
if [ -f "${MONO:-}" ]; then MONO=$(realpath -- "$MONO"); fi
if [ -n "${TEACHER:-}" ]; then # an ensemble has colons
    mapfile -t -d : teachers < <(printf %s "$TEACHER")
    for i in "${!teachers[@]}"; do [ ! -f "${teachers[i]}" ] || teachers[i]=$(realpath -- "${teachers[i]}"); done
    TEACHER=$(IFS=: && printf %s "${teachers[*]}")
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export recipe=train_scripts/${script##*/}
if [ -f site.sh ]; then # modules, settings or a container of this cluster
    set +eu
    source ./site.sh
    set -eu
fi
if [ -d .venv/bin ]; then PATH=$PWD/.venv/bin:$PATH; fi
if [[ " $* " =~ " --help "|" -h " ]]; then
    awk 'NR > 1 && !/^#/ { exit } NR > 1 && !/^#SBATCH/ { sub(/^# ?/, ""); print }' "$recipe"
    printf '\nA recipe has the options --dry-run (print every command), --skip STAGES and --only STAGES. Finished stages are skipped.\n'
    printf 'Settings in capitals come from the environment; TRAINING_OPTIONS and DECODING_OPTIONS add options of fairseq to every command.\n'
    exit
fi

set -a
LC_ALL=C PYTHONUTF8=1           # decimal points in every locale; text in UTF-8
: "${OMP_WAIT_POLICY:=passive}" # threads that spin while they wait slow training down up to seven times on shared cores

say() { printf '%s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 2; }
perform() { if [ -n "${dry_run:-}" ]; then printf '%q ' "$@" && say; else "$@"; fi; }
tool() { perform python -m train_scripts.tools "$@"; }
runner() { python -m train_scripts.runner "$@"; }
quoted() { printf "'%s'" "${1//\'/\'\\\'\'}"; } # for the runner: ${1@Q} writes ü as $'\303\274', which it does not read
no_options() { [ $# = 0 ] || die "$1: no such option; settings are variables (NAME=... ${recipe##*/}), and there is --help"; }

# check REMEDY PATTERN NAME...: refuse settings of the user that no command takes, before anything is trained.
check() {
    local name
    for name in "${@:3}"; do [[ -z ${!name:-} || ${!name} =~ ^($2)$ ]] || die "$name=${!name}: $1"; done
}
choose() { check "choose from ${1//|/, }" "$@"; }
count='[1-9][0-9]*' decimal='([0-9]+\.?[0-9]*|\.[0-9]+)'
check "give a number" "0|$count" AVERAGE SEED TEACHERS BLOCKWISE_HEADS GPUS MAX_LENGTH \
    {TEACHER,VERIFIER,DRAFTER,TUNE,BART,WARMUP,SAVE_INTERVAL}_UPDATES {VERIFIER,BLOCKWISE}_EPOCHS
check "give a number above 0" "$count" {{VERIFIER,TEACHER,DRAFTER}_,{,DRAFTER_,DISTIL_}MAX_}TOKENS VOCABULARY {,DECODING_}BLOCK_SIZE \
    {,ENCODER_,DRAFTER_}LAYERS {,FFN_}WIDTH HEADS BLOCKS_PER_SENTENCE UPDATES LOG_INTERVAL UPSAMPLE WORKERS HOLD_OUT DISTIL_BEAM \
    REPEATS {,TEST_,SWEEP_,TIMING_}SENTENCES {TRAIN,VALID,TEST}_PAIRS {,DECODING_}THREADS
check "give a number" "$decimal" {,{REVERSE,TEACHER,VERIFIER,DRAFTER,BLOCKWISE}_}MINUTES DRAFTER_EPOCHS TIMING_SECONDS
check "give a number, such as 5e-4" "$decimal([eE]-?[0-9]+)?" {TEACHER,VERIFIER,DRAFTER}_LR
check "give a number from 0 to 1" "[01]|0?\.[0-9]+" {,{TEACHER,VERIFIER,DRAFTER}_}DROPOUT
check "give a number from 1, or 0 for no limit" "0|$count(\.[0-9]+)?" {MAX,DISTIL}_RATIO
check "give a number from 1" "$count(\.[0-9]+)?" BACK_RATIO
check "give numbers above 0 with commas" "$count(,$count)*" BLOCK_SIZES TOP_BETAS BATCH_SIZES
check "give numbers with commas" "$decimal(,$decimal)*" TAUS BART_LAYERS
check "give 1 or 0" "[01]" FP16 TENSORBOARD KEEP_RAW
choose "tokens|features" DRAFTER
choose "teacher|verifier" DRAFTER_DATA
choose "unigram|bpe|moses|gpt2" SUBWORDS

# A script that is ended by its process id also ends its child processes.
trap 'pkill -TERM -P $$ 2>/dev/null || true' EXIT

# Variables that a recipe sets for the runner besides its settings: suffixes and language of the text; fairseq's options,
# quoted as in a shell, of every command (task_options), of trainings, those without a GPU (cpu_training), of decoding by the
# teacher (distil_options) and on the validation and test sets (search_options); options of spec-dec-metrics; further decoders
# to test; the licence of the data; the origin of the text (its default: DATA), with which alone a NAME is continued; and the
# stages, if not all.
src='' tgt='' licence=unknown origin='' recipe_stages='' decoders='' task_options='' distil_options=''
search_options='' metric_options='' teacher_options='' verifier_options='' drafter_training='' blockwise_training='' cpu_training=''
export src tgt LANGUAGE_OF_TARGET licence origin recipe_stages decoders task_options distil_options search_options metric_options \
    teacher_options verifier_options drafter_training blockwise_training cpu_training SUBWORDS ACTIVATION TEACHERS

# Hyper-parameters of the papers: GAD Table 10, left (the verifier) and right (the drafter), as in SpecDec Table 7 and
# Aggressive Decoding Table 13. β2 of the verifier is the usual 0.98 (Vaswani et al. 2017), not the tables' 0.99. Dropout:
# 0.1 to 0.3.
paper_verifier="--criterion label_smoothed_cross_entropy --label-smoothing 0.1 --optimizer adam --adam-betas '(0.9, 0.98)' --lr 1e-3
    --lr-scheduler inverse_sqrt --warmup-init-lr 1e-7 --warmup-updates 4000 --weight-decay 0.00001 --clip-norm 3.0 --max-update 100000"
paper_drafter="--label-smoothing 0.1 --optimizer adam --adam-betas '(0.9, 0.999)' --adam-eps 1e-6 --lr 5e-4
    --lr-scheduler inverse_sqrt --warmup-init-lr 1e-7 --warmup-updates 10000 --weight-decay 0.01 --clip-norm 5.0 --max-update 300000"
paper_verifier_tokens=$((20000 * 4 * 8)) paper_drafter_tokens=$((4096 * 4 * 8)) # max tokens x update frequency x GPUs
