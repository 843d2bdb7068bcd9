"""Read sentences from plain text, one per line, or from output of fairseq-generate and fairseq-interactive."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.invalid_text import ENCODING

# S-7\tsource, T-7\ttarget, H-7\tscore\thypothesis, D-7\tscore\tdetokenised hypothesis
_LINE = re.compile(r"^([STHD])-(\d+)\t(.*)$")
# Number of columns before the text.
_COLUMNS = {"S": 0, "T": 0, "H": 1, "D": 1}


@dataclass
class Text:
    """The sentences of a file by number."""

    file: str
    hypotheses: dict[int, str]  # all lines of a plain text
    sources: dict[int, str] = field(default_factory=dict)  # S- lines of generate output
    references: dict[int, str] = field(default_factory=dict)  # T- lines of generate output
    generated: bool = False  # whether the file is generate output
    detokenized: bool = False  # whether only the D- lines are text; S- and T- lines are then left out

    def lacks(self, kind: str) -> str:
        """Return why there are no sources ("S") or references ("T")."""
        if self.detokenized:
            return f"{kind}- lines in tokens or subwords, unlike its D- lines"
        return f"no {kind}- lines"


def read_lines(file: str, option: str) -> list[str]:
    """Read the lines of a UTF-8 file, separated by newlines only; `option` named the file.

    Raises ConfigurationError if it cannot be read, or is empty.
    """
    try:
        lines = Path(file).read_bytes().decode(ENCODING).split("\n")
    except OSError as error:
        raise ConfigurationError(option, file, f"{error.strerror}", "give a text file, a sentence a line") from error
    except UnicodeDecodeError as error:
        position = f"byte {error.start}"
        raise ConfigurationError(option, file, f"not UTF-8 ({position})", "convert it with iconv -t UTF-8") from error
    if lines[-1] == "":  # after the last newline
        lines.pop()
    if not lines:
        raise ConfigurationError(option, file, "is empty", "give a text file, a sentence a line")
    return [line.removesuffix("\r") for line in lines]


def read_text(file: str, option: str) -> Text:
    """Read plain text or generate output; `option` named the file.

    In generate output D- lines are preferred to H- lines; of several hypotheses (`--nbest`) the first is taken. fairseq
    detokenises D- lines only: where they differ from H- lines, sources and references are not comparable.
    Raises ConfigurationError if the file cannot be read, is empty, or is incomplete generate output.
    """
    lines = read_lines(file, option)
    by_kind: dict[str, dict[int, str]] = {kind: {} for kind in _COLUMNS}
    for line in lines:
        match = _LINE.match(line)
        if match is None:
            continue
        kind, number, rest = match.group(1), int(match.group(2)), match.group(3)
        columns = rest.split("\t", _COLUMNS[kind])
        if len(columns) > _COLUMNS[kind]:
            by_kind[kind].setdefault(number, columns[-1])
    hypotheses = by_kind["D"] or by_kind["H"]
    if not hypotheses:
        return Text(file, dict(enumerate(lines)))
    missing = sorted((by_kind["S"].keys() | by_kind["T"].keys() | by_kind["H"].keys()) - hypotheses.keys())
    if missing:
        problem = f"generate output that broke off (sentence {missing[0]} has no hypothesis)"
        raise ConfigurationError(option, file, problem, "run fairseq-generate again")
    in_order = {kind: dict(sorted(sentences.items())) for kind, sentences in by_kind.items()}
    hypotheses = in_order["D"] or in_order["H"]
    if any(hypotheses[number] != line for number, line in in_order["H"].items()):
        return Text(file, hypotheses, generated=True, detokenized=True)
    return Text(file, hypotheses, in_order["S"], in_order["T"], generated=True)


def aligned(text: Text, sentences: dict[int, str], hypotheses: Text, option: str) -> list[str]:
    """Return one sentence for each hypothesis.

    For plain hypotheses the numbers of lines must be equal; for numbered generate output the file may be longer.
    Raises ConfigurationError if the numbers of sentences do not fit.
    """
    if not hypotheses.generated and len(sentences) != len(hypotheses.hypotheses):
        problem = f"{len(sentences)} sentences, but {hypotheses.file} has {len(hypotheses.hypotheses)}"
        raise ConfigurationError(option, text.file, problem, "give files of the same length")
    missing = [number for number in hypotheses.hypotheses if number not in sentences]
    if missing:
        problem = f"has no sentence {missing[0]} ({len(sentences)} sentences, {len(hypotheses.hypotheses)} wanted)"
        raise ConfigurationError(option, text.file, problem, "give the file that belongs to these hypotheses")
    return [sentences[number] for number in hypotheses.hypotheses]
