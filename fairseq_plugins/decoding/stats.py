"""Iterations, accepted tokens and times: what the summary line, `--stats-file` and reports read."""

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from fairseq_plugins.commands.machine import machine
from fairseq_plugins.decoding.engine.graph_capture import Graphs
from fairseq_plugins.decoding.partial_file import PartialFile, broke_off
from fairseq_plugins.output import say


@dataclass
class SentenceStats:
    """One decoded sentence.

    Attributes:
        id: its number in the data set.
        source_tokens: length of its source, EOS included.
        tokens: length of its output, EOS included.
        iterations: how many times it was drafted and verified.
        emitted: tokens that each iteration added, the verifier's own included.
        batch_size: how many sentences were decoded at a time.
        seconds: wall-clock time of its batch, divided by the sentences in that batch.
    """

    id: int
    source_tokens: int
    tokens: int
    iterations: int
    emitted: list[int]
    batch_size: int
    seconds: float


class DecodingStats:
    """Adds up what decoding did; writes one JSON line a sentence when a file is given.

    Args:
        decoder: name of the decoder, for the summary.
        file: where to write the lines, the first with the command, the machine and the date. They appear under that
            name when the run has ended well; until then, and after an interruption, under the name with `.partial`
            after it.

    Raises:
        ConfigurationError: when the file cannot be written.
    """

    def __init__(self, decoder: str, file: str | None = None) -> None:
        self.decoder = decoder
        self.sentences = 0
        self.tokens = 0
        self.iterations = 0
        self.seconds = 0.0
        # Name of the backend, and why it was chosen.
        self.backend = ""
        # Of a generator on a GPU.
        self.graphs: Graphs | None = None
        self._file = None if file is None else PartialFile(file, "--stats-file")

    @property
    def mean_accepted_tokens(self) -> float:
        """Tokens per iteration, the verifier's own included: greedy decoding has 1 (GAD Table 2)."""
        return self.tokens / max(self.iterations, 1)

    def record(self, batch: Sequence[SentenceStats], seconds: float) -> None:
        """Add a decoded batch that took so many seconds."""
        is_first = self.sentences == 0
        self.sentences += len(batch)
        self.tokens += sum(sentence.tokens for sentence in batch)
        self.iterations += sum(sentence.iterations for sentence in batch)
        self.seconds += seconds
        if self._file is not None:
            run = {"run": {"command": shlex.join(sys.argv), "machine": machine()}} if is_first else {}
            for sentence in batch:
                line = {**vars(sentence), "backend": self.backend.partition(":")[0], **run}
                self._file.write(json.dumps(line) + "\n")
                run = {}

    def summary(self) -> str:
        """The line that ends a run."""
        return (
            f"{self.decoder}: {self.sentences} sentences, {self.tokens} tokens, {self.iterations} iterations, "
            f"{self.mean_accepted_tokens:.2f} mean accepted tokens, "
            f"{self.tokens / max(self.seconds, 1e-9):.1f} tokens/s; {self.backend}"
            + (f"; {self.graphs}" if self.graphs else "")
        )

    def close(self) -> None:
        """Print the summary and give the file its final name, unless the run broke off."""
        if self._file is not None:
            self._file.close()
        if not broke_off() and self.sentences > 0:
            say(self.summary())
