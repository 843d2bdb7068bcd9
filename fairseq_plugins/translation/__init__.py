"""`spec-dec-translate`: files of raw text."""
