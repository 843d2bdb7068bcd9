"""Quality of text: BLEU, chrF, TER, ROUGE, SARI, edits."""
