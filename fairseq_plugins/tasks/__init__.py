"""fairseq tasks of this plugin."""

import sys

from fairseq_plugins.tasks import spec_dec
from fairseq_plugins.tasks.beside import add_decoder, task_beside_decoder

_beside = task_beside_decoder(sys.argv)
if _beside is not None:
    # The parser of a task is made before anything of it is called.
    add_decoder(_beside)

__all__ = ["spec_dec"]
