"""Read decoding runs for reports: files of --stats-file, outputs, sources and references."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_plugins.decoding.recording.stats import SentenceStats
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.metrics.texts import Text, pick, read_text
from fairseq_plugins.shared.typed_values import load_json, parse_json

REMEDY = "give a file that --stats-file wrote"


@dataclass
class Run:
    """One decoding run."""

    label: str  # name in tables and figures
    file: str  # its statistics
    sentences: dict[int, SentenceStats]  # by number
    hypotheses: Text | None = None  # its output
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
    files: Sequence[str],
    labels: Sequence[str] | None,
    hypotheses: Sequence[str] | None,
    traces: Sequence[str] | None = None,
) -> list[Run]:
    """Read statistics, outputs and traces of runs, one of each per run; labels default to the names of the files.

    Raises ConfigurationError if the numbers of arguments differ, or for unsuitable files.
    """
    for option, given in (("--labels", labels), ("--hypotheses", hypotheses), ("--traces", traces)):
        if given is not None and len(given) != len(files):
            problem = f"{len(given)} given for {len(files)} stats files"
            raise ConfigurationError(option, None, problem, "give one for each")
    names = list(labels) if labels is not None else names_of(files)
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ConfigurationError("--labels", twice[0], "given twice", "give each run its own")
    runs = []
    for number, (file, name) in enumerate(zip(files, names, strict=True)):
        run = Run(name, file, read_stats(file), trace=None if traces is None else traces[number])
        if hypotheses is not None:
            run.hypotheses = read_text(hypotheses[number], "--hypotheses")
            pick(run.hypotheses, run.hypotheses.hypotheses, sorted(run.sentences), "--hypotheses")
        runs.append(run)
    return runs


def names_of(files: Sequence[str]) -> list[str]:
    """Return file names without suffix, or whole paths for equal names."""
    stems = [Path(file).stem for file in files]
    return [stem if stems.count(stem) == 1 else file for stem, file in zip(stems, files, strict=True)]


def side(file: str | None, option: str, kind: str, runs: Sequence[Run]) -> dict[int, str] | None:
    """Return sources or references (`kind`) by sentence number: from a file, else from the outputs of the runs."""
    if file is not None:
        text = read_text(file, option)
        sentences = getattr(text, kind) if text.generated else text.hypotheses
        if not sentences:
            raise ConfigurationError(option, file, f"generate output without {kind}", "give them as plain text")
        numbers = sorted({number for run in runs for number in run.sentences})
        pick(text, sentences, numbers, option)
        return sentences
    for run in runs:
        if run.hypotheses is not None and getattr(run.hypotheses, kind):
            return getattr(run.hypotheses, kind)
    return None
