# shellcheck shell=bash disable=SC2034,SC2154  # this file and the recipes use each other's variables
# What the recipes of WMT have in common: `language`, the other one than English; the set-up of the papers; SIZE.
case $NAME in
    *"en-$language") src=en tgt=$language ;;
    *"$language-en") src=$language tgt=en ;;
    *) die "NAME=$NAME: does not end in en-$language or $language-en" ;;
esac
LANGUAGE_OF_TARGET=$tgt
metric_options="--metrics bleu,sacrebleu,chrf"

SUBWORDS=moses
: "${VOCABULARY:=32000}"                                 # GAD and SpecDec, section 5.1
: "${MAX_LENGTH:=250}" "${MAX_RATIO:=1.5}"               # fairseq, prepare-wmt14en2de.sh
: "${TEACHERS:=1}"                                       # GAD and SpecDec, section 5.1; GAD Table 6 has an ensemble of 3
: "${BLOCK_SIZE:=25}" "${BLOCK_SIZES:=10,15,20,25}"      # GAD Table 2, Aggressive Decoding Table 14; 30 for big (GAD 5.3.2)
: "${VERIFIER_TOKENS:=$paper_verifier_tokens}" "${DRAFTER_TOKENS:=$paper_drafter_tokens}"
: "${MAX_TOKENS:=8192}" "${DRAFTER_MAX_TOKENS:=4096}"    # at once on a GPU: what fits into its memory

# SIZE: base (GAD section 5.1), big (GAD section 5.3.2) or 12-2 (SpecDec appendix B.5), of verifier and drafter.
: "${SIZE:=base}"
case $SIZE in
    base) verifier_arch=transformer_wmt_en_de drafter_arch=block_nat_base ;;
    big) verifier_arch=transformer_vaswani_wmt_en_de_big drafter_arch=block_nat_big ;;
    12-2) verifier_arch="transformer_wmt_en_de --encoder-layers 12 --decoder-layers 2" drafter_arch=block_nat_12_2 ;;
    *) die "SIZE=$SIZE: choose from base, big, 12-2" ;;
esac

verifier_options="--task translation --arch $verifier_arch --share-all-embeddings $paper_verifier --dropout $DROPOUT"
drafter_training="--arch $drafter_arch --share-all-embeddings $paper_drafter --dropout $DROPOUT"
