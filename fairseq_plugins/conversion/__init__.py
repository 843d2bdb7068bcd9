"""Convert models of Hugging Face's format into folders that fairseq and `fairseq_plugins.load` read."""
