"""Statistics of decoding, for the summary line and `--stats-file`."""

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from fairseq_plugins.decoding.reference.captured.graph_capture import Graphs
from fairseq_plugins.process.output import counted, say
from fairseq_plugins.shared.machine import machine
from fairseq_plugins.shared.partial_file import PartialFile, was_interrupted


@dataclass
class SentenceStats:
    """One decoded sentence; lengths include EOS."""

    id: int  # its number in the data set
    source_tokens: int
    tokens: int
    iterations: int
    emitted: list[int]  # number of tokens that each iteration emitted
    batch_size: int  # number of sentences decoded at a time
    seconds: float  # wall-clock time of its batch, divided by the sentences in that batch


class DecodingStats:
    """Sum counts and times, and write a JSON line for each sentence to the `PartialFile` that `file` names.

    The first line also has command, machine and date.
    """

    def __init__(self, decoder: str, file: str | None = None) -> None:
        self.decoder = decoder
        self.sentences = 0
        self.tokens = 0
        self.iterations = 0
        self.seconds = 0.0
        self.batch_size = 0  # of the largest batch
        # "name: reason".
        self.backend = ""
        # None on a CPU.
        self.graphs: Graphs | None = None
        self._file = None if file is None else PartialFile(file, "--stats-file")

    @property
    def tokens_per_iteration(self) -> float:
        """Tokens per iteration; 1 for greedy decoding (GAD Table 2)."""
        return self.tokens / max(self.iterations, 1)

    def record(self, batch: Sequence[SentenceStats], seconds: float) -> None:
        """Add a decoded batch and its wall-clock time."""
        is_first = self.sentences == 0
        self.sentences += len(batch)
        self.tokens += sum(sentence.tokens for sentence in batch)
        self.iterations += sum(sentence.iterations for sentence in batch)
        self.seconds += seconds
        self.batch_size = max([self.batch_size, *(sentence.batch_size for sentence in batch)])
        if self._file is not None:
            run = {"run": {"command": shlex.join(sys.argv), "machine": machine()}} if is_first else {}
            for sentence in batch:
                line = {**vars(sentence), "backend": self.backend.partition(":")[0], **run}
                self._file.write(json.dumps(line) + "\n")
                run = {}

    def summary(self) -> str:
        """Return the line that ends a run."""
        return (
            f"{self.decoder}: {counted(self.sentences, 'sentence')}, {counted(self.tokens, 'token')}, "
            f"{counted(self.iterations, 'iteration')}, {self.tokens_per_iteration:.2f} tokens per iteration, "
            f"batch size {self.batch_size}, "
            f"{self.tokens / max(self.seconds, 1e-9):.1f} tokens/s; {self.backend}"
            + (f"; {self.graphs}" if self.graphs else "")
        )

    def close(self) -> None:
        """Print the summary and give the file its final name, unless the run was interrupted."""
        if self._file is not None:
            self._file.close()
        if not was_interrupted() and self.sentences > 0:
            say(self.summary())
