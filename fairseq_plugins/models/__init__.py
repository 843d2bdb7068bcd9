"""fairseq models of this plugin."""

from fairseq_plugins.models import block_nat, blockwise_transformer, marian_transformer

__all__ = ["block_nat", "blockwise_transformer", "marian_transformer"]
