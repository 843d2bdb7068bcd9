"""fairseq tasks of this plugin."""

from fairseq_plugins.tasks import spec_dec

__all__ = ["spec_dec"]
