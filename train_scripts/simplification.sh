#!/usr/bin/env bash
# Sentence simplification: the set-up of Aggressive Decoding Table 4 (Transformer-base, WikiLarge), scored with SARI.
#
#   DATA=folder train_scripts/simplification.sh        train.src, train.tgt, valid.*, test.*, a sentence a line
#
# With several references all are in test.tgt.0, test.tgt.1 ... (Turk has 8, ASSET 10), and one of them in test.tgt, too.
#
# DATA is required: WikiLarge comes from its authors (github.com/XingxingZhang/dress), the references of Turk from
# github.com/cocoxu/simplification, those of ASSET from github.com/facebookresearch/asset.
#SBATCH --job-name=simplification --gres=gpu:4 --cpus-per-task=16 --time=1-00:00:00 --output=%x-%j.log --open-mode=append --signal=B:USR1@300
script=${BASH_SOURCE[0]} # Slurm runs a copy from elsewhere, and knows of which file
[ -e "$(dirname "$script")/recipe.sh" ] || [ -L "$script" ] || script=$(scontrol show job "$SLURM_JOB_ID" | sed -n 's/^ *Command=\(.*\.sh\).*/\1/p;T;q')
[ ! -L "$script" ] || script=$(realpath -- "$script")
# shellcheck source=train_scripts/recipe.sh
source "$(dirname "$script")/recipe.sh" || exit

: "${NAME:=simplification}"
src=src tgt=tgt LANGUAGE_OF_TARGET=en
licence="that of the corpora in DATA"

# The paper only says Transformer-base. We take Table 11 (from scratch), its settings for the other rewriting task.
: "${SUBWORDS:=bpe}" # not moses, to which src and tgt are no languages: it would break "it's" apart
: "${VOCABULARY:=32000}" "${VERIFIER_TOKENS:=$((5120 * 4 * 4))}" "${MAX_TOKENS:=5120}" "${VERIFIER_EPOCHS:=60}" "${DROPOUT:=0.3}"
# The paper drafts from the input only (iad); the trained drafter is our addition. GAD Table 10, right, but fewer updates.
: "${DRAFTER_TOKENS:=$((5120 * 4 * 4))}" "${DRAFTER_MAX_TOKENS:=4096}" "${DRAFTER_UPDATES:=100000}" "${BLOCK_SIZE:=15}" "${BLOCK_SIZES:=5,10,15}"
: "${TEACHERS:=0}" "${DISTIL_DECODER:=greedy}"
decoders=iad
metric_options="--metrics sari,bleu,sacrebleu --source data-bin/$NAME/raw/test.$src"

verifier_options="--task translation --arch transformer_wmt_en_de --share-all-embeddings --optimizer adam --adam-betas '(0.9, 0.98)'
    --adam-eps 1e-8 --lr 5e-4 --lr-scheduler inverse_sqrt --warmup-updates 4000 --weight-decay 0.0
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --dropout $DROPOUT --max-epoch $VERIFIER_EPOCHS"
drafter_training="--arch block_nat_base --share-all-embeddings $paper_drafter --dropout 0.1 --max-update $DRAFTER_UPDATES"

exec python -m train_scripts.runner recipe "$@"
