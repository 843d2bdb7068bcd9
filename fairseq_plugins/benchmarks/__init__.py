"""Decoders side by side: speed, quality, latency and memory of ours, of fairseq's search and of CTranslate2."""
