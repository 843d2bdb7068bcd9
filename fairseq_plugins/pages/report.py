"""Where the speed of a run comes from: tables and figures over one or several files of `--stats-file`.

    spec-dec-report gad.jsonl gad++.jsonl --baseline greedy.jsonl --output FOLDER

Writes `report.md` with its figures as PNG, and `report.html`, one file with everything in it.
"""

import argparse
import base64
import html
import json
import math
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import sacrebleu

from fairseq_plugins.commands.cli import run_command
from fairseq_plugins.commands.files import write_atomically
from fairseq_plugins.commands.tables import table
from fairseq_plugins.decoding.stats import SentenceStats
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.metrics.edit_ratio import edit_ratio
from fairseq_plugins.metrics.texts import Text, pick, read_text
from fairseq_plugins.pages import figures
from fairseq_plugins.pages.sweep_figure import quality_figure

PERCENTILES = (50, 90, 95, 99)
# What fewer than this share of the sentences or iterations reach is noise and not drawn.
_SENTENCES_SHARE = 0.05
_ITERATIONS_SHARE = 0.01

REMEDY = "give a file that --stats-file wrote"


@dataclass
class Run:
    """One decoding run.

    Attributes:
        label: its name in tables and figures.
        file: where its statistics come from.
        sentences: by number.
        hypotheses: its output, when given.
    """

    label: str
    file: str
    sentences: dict[int, SentenceStats]
    hypotheses: Text | None = None

    @property
    def tokens(self) -> int:
        """Tokens of all outputs."""
        return sum(sentence.tokens for sentence in self.sentences.values())

    @property
    def iterations(self) -> int:
        """Iterations of all sentences."""
        return sum(sentence.iterations for sentence in self.sentences.values())

    @property
    def seconds(self) -> float:
        """Time of all sentences."""
        return sum(sentence.seconds for sentence in self.sentences.values())


# ------------------------------------------------------------------------------------------------ reading the files


def read_stats(file: str) -> dict[int, SentenceStats]:
    """Read a file of `--stats-file`; unknown fields are ignored.

    Raises:
        ConfigurationError: naming file, line and remedy, when it is missing, empty, truncated or of another kind.
    """
    try:
        lines = Path(file).read_bytes().decode("utf-8").split("\n")
    except OSError as error:
        unfinished = Path(f"{file}.partial").is_file()
        hint = f"the run broke off, {file}.partial holds what it had decoded" if unfinished else REMEDY
        raise ConfigurationError(f"{file}: {error.strerror}; {hint}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{file}: is not text; {REMEDY}") from error
    complete, rest = lines[:-1], lines[-1]
    if not any(lines):
        raise ConfigurationError(f"{file}: is empty; {REMEDY}, after a run that has ended")
    sentences: dict[int, SentenceStats] = {}
    for number, line in enumerate(complete, 1):
        sentence = _read_line(file, number, line)
        if sentence.id in sentences:
            raise ConfigurationError(
                f"{file}, line {number}: sentence {sentence.id} for the second time; give one run per file"
            )
        sentences[sentence.id] = sentence
    if rest:
        number = len(complete) + 1
        if not complete:
            _read_line(file, number, rest)  # not ours at all?
        raise ConfigurationError(
            f"{file}, line {number}: truncated; decode again, or drop the line: head -n {number - 1} {file} > FILE"
        )
    return sentences


def _read_line(file: str, number: int, line: str) -> SentenceStats:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ConfigurationError(f"{file}, line {number}: is not JSON; {REMEDY}") from error
    names = [item.name for item in fields(SentenceStats)]
    missing = [name for name in names if not isinstance(record, dict) or name not in record]
    if missing:
        raise ConfigurationError(f"{file}, line {number}: has no field {missing[0]!r}; {REMEDY}")
    sentence = SentenceStats(**{name: record[name] for name in names})
    counts = [sentence.id, sentence.source_tokens, sentence.tokens, sentence.iterations, sentence.batch_size]
    sound = (
        isinstance(sentence.accepted, list)
        and all(isinstance(count, int) for count in [*counts, *sentence.accepted])
        and isinstance(sentence.seconds, (int, float))
        and sum(sentence.accepted) == sentence.tokens
        and len(sentence.accepted) == sentence.iterations > 0
    )
    if not sound:
        raise ConfigurationError(
            f"{file}, line {number}: 'accepted' must be the tokens of each iteration and add up to 'tokens'; {REMEDY}"
        )
    return sentence


def read_sweep(file: str) -> dict[str, Any]:
    """Read what `spec-dec-sweep` wrote.

    Raises:
        ConfigurationError: when it is missing or of another kind.
    """
    try:
        sweep = json.loads(Path(file).read_bytes())
        keys = sweep["cells"][0].keys() & sweep["baselines"]["greedy"].keys()
    except OSError as error:
        raise ConfigurationError(f"--sweep {file}: {error.strerror}; give the sweep.json of spec-dec-sweep") from error
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"--sweep {file}: not written by spec-dec-sweep; give its sweep.json") from error
    if "bleu" not in keys:
        raise ConfigurationError(f"--sweep {file}: not written by spec-dec-sweep; give its sweep.json")
    return sweep


# ---------------------------------------------------------------------------------------------------- what happened


def speed_ups(run: Run, baseline: Run | None) -> dict[int, float]:
    """Speed-up of every sentence.

    Args:
        run: whose.
        baseline: compare wall-clock times with this run, on the sentences that both have. Without one, count
            iterations, of which greedy decoding needs one per token.

    Raises:
        ConfigurationError: when the runs have no sentence in common.
    """
    if baseline is None:
        return {number: sentence.tokens / sentence.iterations for number, sentence in run.sentences.items()}
    common = run.sentences.keys() & baseline.sentences.keys()
    if not common:
        raise ConfigurationError(
            f"--baseline {baseline.file}: has no sentence number in common with {run.file}; decode the same subset"
        )
    return {
        number: baseline.sentences[number].seconds / max(run.sentences[number].seconds, 1e-9)
        for number in sorted(common)
    }


def edit_ratios(sources: Sequence[str], outputs: Sequence[str]) -> list[float]:
    """Edit distance of source and output in tokens between spaces, divided by the length of the source.

    Aggressive Decoding, section 4.1.2: "normalized (by the input length) edit distance between the input and output".
    """
    return [edit_ratio(source.split(), output.split()) for source, output in zip(sources, outputs, strict=True)]


# Upper ends of the rows of the table of speed-up by edit ratio; the first row is of unchanged sentences.
_EDIT_RATIOS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, math.inf)


def speed_up_by_edits(ratios: Sequence[float], speed_ups: Sequence[float]) -> list[tuple[str, int, float]]:
    """(range of edit ratios, sentences in it, their median speed-up), ranges without sentences left out.

    Aggressive Decoding, Figure 5, as numbers.
    """
    rows = []
    lower = -math.inf
    for upper in _EDIT_RATIOS:
        inside = [gain for ratio, gain in zip(ratios, speed_ups, strict=True) if lower < ratio <= upper]
        if inside:
            name = f"above {lower:g}, to {upper:g}" if upper < math.inf else f"above {lower:g}"
            rows.append(("0 (unchanged)" if upper == 0 else name, len(inside), statistics.median(inside)))
        lower = upper
    return rows


def accepted_by_iteration(run: Run) -> list[tuple[int, float, int]]:
    """(iteration from 1, mean accepted tokens in it, sentences that had it), as long as enough sentences have it."""
    lists = [sentence.accepted for sentence in run.sentences.values()]
    enough = max(1.0, _SENTENCES_SHARE * len(lists))
    points = []
    for iteration in range(max(map(len, lists))):
        counts = [accepted[iteration] for accepted in lists if len(accepted) > iteration]
        if len(counts) < enough:
            break
        points.append((iteration + 1, sum(counts) / len(counts), len(counts)))
    return points


def acceptance_by_position(run: Run) -> tuple[list[float], list[float]]:
    """Probability that the token at a position of the draft is accepted.

    An iteration that gains g tokens has accepted the drafted positions 1 to g - 1; the verifier's own token was the
    last. What it says of position g depends: it was rejected, unless the sentence ended there, where nothing is known
    of it. So this is a survival curve with censored observations, estimated as by Kaplan and Meier (1958). Drafts are
    taken to be one token shorter than the largest gain; one that is shorter itself counts as rejected after its end.

    Returns:
        by position: the probability given that all before it were accepted, and the product of these.
    """
    ended = [sentence.accepted[-1] for sentence in run.sentences.values()]
    went_on = [gain for sentence in run.sentences.values() for gain in sentence.accepted[:-1]]
    given: list[float] = []
    together: list[float] = []
    enough = max(1.0, _ITERATIONS_SHARE * (len(ended) + len(went_on)))
    for position in range(1, max([*ended, *went_on])):
        accepted = sum(gain > position for gain in ended) + sum(gain > position for gain in went_on)
        observed = accepted + sum(gain == position for gain in went_on)
        if observed < enough:
            break
        given.append(accepted / observed)
        together.append(given[-1] * (together[-1] if together else 1.0))
    return given, together


# --------------------------------------------------------------------------------------------------- the report


@dataclass
class Report:
    """A report in the making: Markdown, and the figures by file name."""

    lines: list[str] = field(default_factory=list)
    figures: dict[str, bytes] = field(default_factory=dict)

    def section(self, title: str, *paragraphs: str) -> None:
        """Append a heading and paragraphs."""
        self.lines += [f"## {title}", *paragraphs]

    def figure(self, name: str, alt: str, png: bytes) -> None:
        """Append a figure."""
        self.figures[f"{name}.png"] = png
        self.lines.append(f"![{alt}]({name}.png)")

    def markdown(self) -> str:
        """The report in Markdown; figures are files beside it."""
        return "\n\n".join(self.lines) + "\n"

    def html(self) -> str:
        """The report as one HTML file without references to others."""
        from markdown import markdown

        body = markdown(self.markdown(), extensions=["tables"])
        for name, png in self.figures.items():
            body = body.replace(f'src="{name}"', f'src="data:image/png;base64,{base64.b64encode(png).decode()}"')
        return _PAGE.format(body=body)


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Decoding report</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: #222; background: #fff; }}
h2 {{ margin-top: 2.5rem; border-bottom: 1px solid #ddd; }}
img {{ max-width: 100%; height: auto; }}
table {{ border-collapse: collapse; display: block; overflow-x: auto; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .25rem .75rem; border-bottom: 1px solid #ddd; }}
</style>
</head>
<body>
{body}
</body>
</html>
"""


def plain(text: str) -> str:
    """Text of the user's that means nothing in Markdown and HTML."""
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", html.escape(text, quote=False))


def write_up(
    runs: Sequence[Run],
    baseline: Run | None,
    sources: Mapping[int, str] | None,
    references: Mapping[int, str] | None,
    sweep: Mapping[str, Any] | None,
) -> Report:
    """Make the report.

    Args:
        runs: what is reported.
        baseline: whose wall-clock times speed-up is measured against; None: iterations count.
        sources: source text by sentence, for the edit ratio.
        references: reference text by sentence, for BLEU.
        sweep: what `read_sweep` returns.
    """
    report = Report(["# Decoding report"])
    faster = {run.label: speed_ups(run, baseline) for run in runs}
    if baseline is None:
        what = "speed-up in iterations (tokens per iteration)"
        how = (
            "Speed-up of a sentence: its tokens divided by its iterations, since greedy decoding runs once a token. "
            "What an iteration costs is not in it; for wall-clock time give `--baseline`."
        )
    else:
        what = f"speed-up in wall-clock time over {baseline.label}"
        how = f"Speed-up of a sentence: its wall-clock time in {plain(baseline.label)} divided by that in the run."
    _summary(report, [*runs, *([baseline] if baseline else [])], faster, references, how)
    report.section(
        "Speed-up of single sentences",
        "As Figure 4 of Generalized Aggressive Decoding: how many sentences gain how much.",
    )
    alt = "Histogram of speed-ups"
    report.figure(
        "speed-up", alt, figures.speed_up_distribution({name: list(s.values()) for name, s in faster.items()}, what)
    )
    _edits(report, runs, faster, sources, what)
    _acceptance(report, runs)
    report.section("Iterations by length", "Mean iterations of sentences whose outputs are about as long.")
    lengths = {
        run.label: ([s.tokens for s in run.sentences.values()], [s.iterations for s in run.sentences.values()])
        for run in runs
    }
    alt = "Iterations over output tokens"
    report.figure("iterations-by-length", alt, figures.iterations_by_length(lengths))
    if sweep is not None:
        _quality_and_speed(report, sweep)
    return report


def _summary(
    report: Report,
    runs: Sequence[Run],
    faster: Mapping[str, Mapping[int, float]],
    references: Mapping[int, str] | None,
    how: str,
) -> None:
    headers = ["run", "sentences", "tokens", "iterations", "accepted tokens", "tokens/s", "speed-up, median"]
    with_bleu = references is not None and any(run.hypotheses is not None for run in runs)
    rows = []
    for run in runs:
        speed_up = faster.get(run.label)
        rows.append(
            [
                plain(run.label),
                len(run.sentences),
                run.tokens,
                run.iterations,
                f"{run.tokens / run.iterations:.2f}",
                f"{run.tokens / max(run.seconds, 1e-9):.1f}",
                "-" if speed_up is None else f"{np.median(list(speed_up.values())):.2f}",
                *([_bleu(run, references)] if with_bleu and references is not None else []),
            ]
        )
    report.section("Summary", table(rows, headers + (["sacreBLEU"] if with_bleu else []), "pipe"), how)
    batches = sorted({sentence.batch_size for run in runs for sentence in run.sentences.values()})
    latency = []
    for run in runs:
        milliseconds = [1000 * sentence.seconds for sentence in run.sentences.values()]
        values = [f"{np.percentile(milliseconds, percentile):.1f}" for percentile in PERCENTILES]
        latency.append([plain(run.label), f"{np.mean(milliseconds):.1f}", *values])
    note = "Time of the decoder for a sentence."
    if batches[-1] > 1:
        shown = "1" if batches[0] == 1 else str(batches[0])
        note += (
            f" Sentences were decoded in batches of {shown} to {batches[-1]}, and each carries an equal share of its "
            "batch's time: for latency, decode with `--batch-size 1`."
        )
    headers = ["milliseconds", "mean", *(f"p{percentile}" for percentile in PERCENTILES)]
    report.section("Latency", table(latency, headers, "pipe"), note)


def _bleu(run: Run, references: Mapping[int, str]) -> str:
    if run.hypotheses is None:
        return "-"
    numbers = sorted(run.sentences.keys() & run.hypotheses.hypotheses.keys() & references.keys())
    if not numbers:
        return "-"
    hypotheses = [run.hypotheses.hypotheses[number] for number in numbers]
    return f"{sacrebleu.BLEU().corpus_score(hypotheses, [[references[number] for number in numbers]]).score:.2f}"


def _edits(
    report: Report,
    runs: Sequence[Run],
    faster: Mapping[str, Mapping[int, float]],
    sources: Mapping[int, str] | None,
    what: str,
) -> None:
    title = "Speed-up and edit ratio"
    usable = [run for run in runs if run.hypotheses is not None]
    if sources is None or not usable:
        report.section(
            title,
            "Left out: needs source and output. Add `--hypotheses` with the output of fairseq-generate of each run.",
        )
        return
    series = {}
    for run in usable:
        assert run.hypotheses is not None
        numbers = [number for number in faster[run.label] if number in sources]
        outputs = pick(run.hypotheses, run.hypotheses.hypotheses, numbers, "--hypotheses")
        ratios = edit_ratios([sources[number] for number in numbers], outputs)
        series[run.label] = (ratios, [faster[run.label][number] for number in numbers])
    report.section(
        title,
        "As Figure 5 of Input-guided Aggressive Decoding. Edit ratio: edit distance between source and output in "
        "words, divided by the words of the source. It is near 0 in rewriting only; a translation changes every word.",
    )
    report.figure("edit-ratio", "Speed-up over edit ratio", figures.speed_against_edits(series, what))
    rows = [
        [plain(name) if row == 0 else "", interval, str(count), f"{gain:.2f}×"]
        for name, run_series in series.items()
        for row, (interval, count, gain) in enumerate(speed_up_by_edits(*run_series))
    ]
    report.lines.append(table(rows, ["run", "edit ratio", "sentences", "median speed-up"], "pipe"))


def _acceptance(report: Report, runs: Sequence[Run]) -> None:
    report.section("Accepted tokens by iteration", "The verifier's own token included, so that greedy decoding has 1.")
    by_iteration = {run.label: accepted_by_iteration(run) for run in runs}
    report.figure(
        "accepted-by-iteration", "Accepted tokens over iterations", figures.accepted_by_iteration(by_iteration)
    )
    by_position = {run.label: acceptance_by_position(run) for run in runs}
    drafted = {label: curves for label, curves in by_position.items() if curves[0]}
    report.section(
        "Acceptance by position in the draft",
        "Left: how probable a drafted token is accepted when all before it were. Right: that it is accepted together "
        "with all before it, the product of the left (Kaplan and Meier's estimate: where a sentence ends, nothing is "
        "known about the rest of the draft).",
    )
    if not drafted:
        report.lines.append("Left out: no iteration gained more than one token, so nothing was drafted.")
        return
    report.figure(
        "accepted-by-position", "Acceptance over position in the draft", figures.accepted_by_position(drafted)
    )


def _quality_and_speed(report: Report, sweep: Mapping[str, Any]) -> None:
    report.section(
        "Quality and speed over β and τ",
        f"From a sweep with {len(sweep['cells'])} settings; BLEU on the development set over sentences per second.",
    )
    report.figure("quality-speed", "BLEU over speed", quality_figure(sweep))


# --------------------------------------------------------------------------------------------------------- command


def load_runs(files: Sequence[str], labels: Sequence[str] | None, hypotheses: Sequence[str] | None) -> list[Run]:
    """Read statistics, and the outputs that go with them.

    Args:
        files: of `--stats-file`.
        labels: one for each, default: the names of the files.
        hypotheses: outputs, one file for each.

    Raises:
        ConfigurationError: when the numbers of arguments do not fit, or for unfit files.
    """
    for option, given in (("--labels", labels), ("--hypotheses", hypotheses)):
        if given is not None and len(given) != len(files):
            raise ConfigurationError(f"{option}: {len(given)} given for {len(files)} stats files; give one for each")
    names = list(labels) if labels is not None else _names(files)
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ConfigurationError(f"--labels {twice[0]}: given twice; give each run its own")
    runs = []
    for number, (file, name) in enumerate(zip(files, names, strict=True)):
        run = Run(name, file, read_stats(file))
        if hypotheses is not None:
            run.hypotheses = read_text(hypotheses[number], "--hypotheses")
            pick(run.hypotheses, run.hypotheses.hypotheses, sorted(run.sentences), "--hypotheses")
        runs.append(run)
    return runs


def _names(files: Sequence[str]) -> list[str]:
    """File names without ending; whole paths where these are the same."""
    stems = [Path(file).stem for file in files]
    return [stem if stems.count(stem) == 1 else file for stem, file in zip(stems, files, strict=True)]


def side(file: str | None, option: str, kind: str, runs: Sequence[Run]) -> dict[int, str] | None:
    """Sources or references by sentence number: from a file, else from generate output among the hypotheses.

    Args:
        file: plain text or generate output, None when not given.
        option: that named it.
        kind: "sources" or "references".
        runs: whose hypotheses may hold them.
    """
    if file is not None:
        text = read_text(file, option)
        found = getattr(text, kind) if text.generated else text.hypotheses
        if not found:
            raise ConfigurationError(f"{option} {file}: generate output without {kind}; give them as plain text")
        numbers = sorted({number for run in runs for number in run.sentences})
        pick(text, found, numbers, option)
        return found
    for run in runs:
        if run.hypotheses is not None and getattr(run.hypotheses, kind):
            return getattr(run.hypotheses, kind)
    return None


def get_parser() -> argparse.ArgumentParser:
    """Options of `spec-dec-report`."""
    parser = argparse.ArgumentParser(prog="spec-dec-report", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("stats", nargs="+", metavar="STATS.jsonl", help="files of --stats-file")
    add("--output", required=True, metavar="FOLDER", help="write report.md, report.html and figures there")
    add("--baseline", metavar="STATS.jsonl", help="measure speed-up in wall-clock time over this run (default: count "
        "iterations)")
    add("--labels", nargs="+", metavar="NAME", help="names of the runs (default: names of the files)")
    add("--hypotheses", nargs="+", metavar="FILE", help="output of each run, plain or of fairseq-generate: edit ratio")
    add("--source", metavar="FILE", help="source text, when the hypotheses are plain text")
    add("--references", metavar="FILE", help="reference text: BLEU (default: T- lines of generate output)")
    add("--sweep", metavar="sweep.json", help="of spec-dec-sweep: quality against speed")
    return parser


def run(argv: Sequence[str]) -> None:
    """Parse, read, write."""
    args = get_parser().parse_args(argv)
    runs = load_runs(args.stats, args.labels, args.hypotheses)
    baseline = None
    if args.baseline is not None:
        label = _names([args.baseline])[0]
        taken = label in {run.label for run in runs}
        baseline = Run(f"{label} (baseline)" if taken else label, args.baseline, read_stats(args.baseline))
    sources = side(args.source, "--source", "sources", runs)
    references = side(args.references, "--references", "references", runs)
    sweep = None if args.sweep is None else read_sweep(args.sweep)
    report = write_up(runs, baseline, sources, references, sweep)
    folder = Path(args.output)
    for name, png in report.figures.items():
        write_atomically(folder / name, png, "--output")
    write_atomically(folder / "report.md", report.markdown(), "--output")
    write_atomically(folder / "report.html", report.html(), "--output")
    print(f"wrote {folder / 'report.md'} and {folder / 'report.html'}")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `spec-dec-report`."""
    return run_command("spec-dec-report", run, argv)


if __name__ == "__main__":
    sys.exit(main())
