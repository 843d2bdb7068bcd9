"""Convert models of Hugging Face's format into folders that fairseq and `fairseq_plugins.load` read."""

from fairseq_plugins.conversion.convert import convert

__all__ = ["convert"]
