"""Compare speed, quality, latency and memory of our decoders, fairseq's search and CTranslate2."""
