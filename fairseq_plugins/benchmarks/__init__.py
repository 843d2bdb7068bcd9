"""Compare speed, quality and latency of our decoders, fairseq's search and CTranslate2."""
