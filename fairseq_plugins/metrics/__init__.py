"""Quality of text: BLEU and its relatives, ROUGE, SARI, edits, and whether a difference is significant."""
