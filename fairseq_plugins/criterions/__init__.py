"""fairseq criterions of this plugin."""

from fairseq_plugins.criterions import blockwise_loss, glat_loss, jacobi_consistency

__all__ = ["blockwise_loss", "glat_loss", "jacobi_consistency"]
