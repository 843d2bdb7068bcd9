"""fairseq tasks of this plugin."""

import sys

from fairseq_plugins.tasks import spec_dec
from fairseq_plugins.tasks.beside import add_decoder, task_beside_decoder, trains_drafter

_beside = task_beside_decoder(sys.argv)
if _beside is not None:
    # Now, since fairseq reads a task's options before it calls the task.
    add_decoder(_beside, trains_drafter(sys.argv))

__all__ = ["spec_dec"]
