"""Training blocks for drafters, codes of fastBPE, and sentences of running text."""
