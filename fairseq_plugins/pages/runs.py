"""Read decoding runs for reports: files of --stats-file and --trace-file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_plugins.decoding.recording.stats import SentenceStats
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.typed_values import load_json, parse_json

REMEDY = "give a file that --stats-file wrote"


@dataclass
class Run:
    """One decoding run."""

    label: str  # name in tables and figures
    file: str  # its statistics
    sentences: dict[int, SentenceStats]  # by number
    trace: str | None = None  # file of its trace

    @property
    def origin(self) -> tuple[str, str] | None:
        """The machine (with the date) and the command; None in statistics of an earlier version."""
        with Path(self.file).open(encoding="utf-8") as lines:
            run = load_json(lines.readline()).get("run")
        return (run["machine"], run["command"]) if run else None

    @property
    def tokens(self) -> int:
        """Total number of output tokens."""
        return sum(sentence.tokens for sentence in self.sentences.values())

    @property
    def iterations(self) -> int:
        """Total number of iterations."""
        return sum(sentence.iterations for sentence in self.sentences.values())

    @property
    def seconds(self) -> float:
        """Total decoding time."""
        return sum(sentence.seconds for sentence in self.sentences.values())


def read_stats(file: str) -> dict[int, SentenceStats]:
    """Read a file of `--stats-file`; unknown fields are ignored.

    Raises ConfigurationError for a missing, empty, truncated or other file.
    """
    try:
        *lines, rest = Path(file).read_bytes().decode("utf-8").split("\n")
    except OSError as error:
        unfinished = Path(f"{file}.partial").is_file()
        hint = f"the run broke off, {file}.partial holds what it had decoded" if unfinished else REMEDY
        raise ConfigurationError(None, file, f"{error.strerror}", hint) from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(None, file, "is not text", REMEDY) from error
    if rest and lines:
        remedy = f"decode again, or drop the line: head -n {len(lines)} {file} > FILE"
        raise ConfigurationError(None, f"{file}, line {len(lines) + 1}", "truncated", remedy)
    if not lines:
        raise ConfigurationError(None, file, "has no complete line", f"{REMEDY}, after a run that has ended")
    sentences: dict[int, SentenceStats] = {}
    for number, line in enumerate(lines, 1):
        try:
            sentence: SentenceStats = parse_json(line, SentenceStats)
            if sum(sentence.emitted) != sentence.tokens or not len(sentence.emitted) == sentence.iterations > 0:
                raise ValueError("'emitted' must be the tokens of each iteration and add up to 'tokens'")
        except ValueError as error:
            problem = f"not of {{--stats-file}} ({error})"
            raise ConfigurationError(None, f"{file}, line {number}", problem, REMEDY) from error
        if sentence.id in sentences:
            problem = f"sentence {sentence.id} for the second time"
            raise ConfigurationError(None, f"{file}, line {number}", problem, "give one run per file")
        sentences[sentence.id] = sentence
    return sentences


def load_runs(
    files: Sequence[str], baseline: str | None = None, traces: Sequence[str] | None = None
) -> tuple[list[Run], Run | None]:
    """Read statistics of runs, their traces (one for each run) and a baseline; runs are named by their files.

    Raises ConfigurationError if the numbers of arguments differ, or for unsuitable files.
    """
    if traces is not None and len(traces) != len(files):
        problem = f"{len(traces)} given for {len(files)} stats files"
        raise ConfigurationError("--traces", None, problem, "give one for each")
    every = [*files, *([] if baseline is None else [baseline])]
    twice = [file for file in every if every.count(file) > 1]
    if twice:
        raise ConfigurationError(None, twice[0], "given twice", "give each run once")
    stems = [Path(file).stem for file in every]
    names = [stem if stems.count(stem) == 1 else file for stem, file in zip(stems, every, strict=True)]
    runs = [Run(name, file, read_stats(file)) for name, file in zip(names, every, strict=True)]
    for run, trace in zip(runs, traces or (), strict=False):
        run.trace = trace
    return runs[: len(files)], runs[-1] if baseline is not None else None
