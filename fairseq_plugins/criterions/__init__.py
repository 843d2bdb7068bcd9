"""fairseq criterions of this plugin."""

from fairseq_plugins.criterions import blockwise_loss, glat_loss

__all__ = ["blockwise_loss", "glat_loss"]
