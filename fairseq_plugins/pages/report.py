"""Report speed and acceptance of decoding runs: tables and figures from their files of `--stats-file`.

    spec-dec-report gad.jsonl gad++.jsonl --baseline greedy.jsonl --output FOLDER

Writes `report.md` with figures as PNG, and `report.html`, one self-contained file.
"""

import base64
import datetime
import html
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fairseq_plugins.decoding.recording.reliability import HEADERS
from fairseq_plugins.pages import figures
from fairseq_plugins.pages.findings import acceptance_by_position, drafter_reliability, speed_ups
from fairseq_plugins.pages.runs import Run, load_runs
from fairseq_plugins.pages.template import template
from fairseq_plugins.shared.cli import CommandParser, run_command
from fairseq_plugins.shared.display import table
from fairseq_plugins.shared.files import write_atomically

PERCENTILES = (50, 90, 95, 99)


@dataclass
class Report:
    """A report being written: Markdown, and PNG figures by file name."""

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
        """Return the report in Markdown, which links to the figures' files."""
        return "\n\n".join(self.lines) + "\n"

    def html(self) -> str:
        """Return the report as one self-contained HTML file."""
        from markdown import markdown

        body = markdown(self.markdown(), extensions=["tables"])
        for name, png in self.figures.items():
            body = body.replace(f'src="{name}"', f'src="data:image/png;base64,{base64.b64encode(png).decode()}"')
        return template("report.html").replace("@@BODY@@", body)


def plain(text: str) -> str:
    """Escape the user's text for Markdown and HTML."""
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", html.escape(text, quote=False))


def write_up(runs: Sequence[Run], baseline: Run | None, command: str) -> Report:
    """Write the report of runs; speed-up is in wall-clock time over `baseline`, or in iterations without it."""
    report = Report(["# Decoding report"])
    faster = {run.label: speed_ups(run, baseline) for run in runs}
    if baseline is None:
        what = "speed-up in iterations (tokens per iteration)"
        how = (
            "Speed-up of a sentence: its tokens divided by its iterations, since greedy decoding needs one per token. "
            "It ignores the cost of an iteration; for wall-clock time give `--baseline`."
        )
    else:
        what = f"speed-up in wall-clock time over {baseline.label}"
        how = f"Speed-up of a sentence: its wall-clock time in {plain(baseline.label)} divided by that in the run."
    shown = [*runs, *([baseline] if baseline else [])]
    _summary(report, shown, faster, how)
    origins = [(run.label, run.origin) for run in shown]
    origins += [("this report", (datetime.date.today().isoformat(), command))]
    report.section("Models, machines, dates and commands", *(_origin(*each) for each in origins))
    report.section(
        "Speed-up of single sentences",
        "The distribution of speed-ups, as Figure 4 of Generalized Aggressive Decoding.",
    )
    gains = {name: list(s.values()) for name, s in faster.items()}
    report.figure("speed-up", "Histogram of speed-ups", figures.speed_up_distribution(gains, what))
    _acceptance(report, runs)
    _reliability(report, runs)
    return report


def _origin(label: str, origin: tuple[str, str] | None) -> str:
    if origin is None:
        return f"{plain(label)}: not in its statistics, of an earlier version"
    machine, command = origin
    return f"{plain(label)}: {plain(machine)}\n\n    {command}"


def _summary(report: Report, runs: Sequence[Run], faster: Mapping[str, Mapping[int, float]], how: str) -> None:
    headers = ["run", "sentences", "tokens", "iterations", "tokens per iteration", "tokens/s", "speed-up, median"]
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
            ]
        )
    report.section("Summary", table(rows, headers, "pipe"), how)
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
    traced = [plain(run.label) for run in runs if run.origin is not None and "--trace-file" in run.origin[1]]
    if traced:
        note += f" Of {', '.join(traced)} it includes tracing: take times from a run without `--trace-file`."
    headers = ["milliseconds", "mean", *(f"p{percentile}" for percentile in PERCENTILES)]
    report.section("Latency", table(latency, headers, "pipe"), note)


def _acceptance(report: Report, runs: Sequence[Run]) -> None:
    by_position = {run.label: acceptance_by_position(run) for run in runs}
    drafted = {label: curves for label, curves in by_position.items() if curves[0]}
    report.section(
        "Acceptance by position in the draft",
        "Above: probability that a drafted token is accepted, given that all before it were. Below: probability that "
        "it and all before it are accepted, the product of those above (Kaplan and Meier's estimate: where a sentence "
        "ends, the rest of the draft is unknown).",
    )
    if not drafted:
        report.lines.append("Left out: no iteration emitted more than one token, so nothing was drafted.")
        return
    png = figures.accepted_by_position(drafted)
    report.figure("accepted-by-position", "Acceptance over position in the draft", png)


def _reliability(report: Report, runs: Sequence[Run]) -> None:
    counts = {run.label: found for run in runs if (found := drafter_reliability(run)) is not None and found.total}
    report.section(
        "Reliability of the drafter's probabilities",
        "Share of right tokens (accepted, given that all before them were) over the drafter's probability. A "
        "calibrated drafter is on the diagonal; below it the drafter is overconfident. The error is the expected "
        "calibration error: the mean distance between both.",
    )
    if not counts:
        why = "needs a trace. Add `--traces` with the file of `--trace-file` of each run."
        if any(run.trace is not None for run in runs):
            why = "the traces have no probabilities of a trained drafter; `gad` and `gad++` write them."
        report.lines.append(f"Left out: {why}")
        return
    without = [plain(run.label) for run in runs if run.label not in counts]
    if without:
        report.lines.append(f"Without probabilities of a drafter: {', '.join(without)}.")
    report.figure("reliability", "Reliability diagram", figures.reliability_diagram(counts))
    rows = [[plain(label), f"{count.total:,}", f"{count.error:.3f}"] for label, count in counts.items()]
    report.lines.append(table(rows, ["run", "tokens", "expected calibration error"], "pipe"))
    rows = [
        [plain(label) if number == 0 else "", *row]
        for label, count in counts.items()
        for number, row in enumerate(count.rows())
    ]
    report.lines.append(table(rows, ["run", *HEADERS], "pipe"))


def get_parser() -> CommandParser:
    """Return the parser of `spec-dec-report`."""
    example = "spec-dec-report gad.jsonl jacobi.jsonl --baseline greedy.jsonl --output report"
    parser = CommandParser("spec-dec-report", (__doc__ or "").split("\n")[0], example)
    add = parser.add_argument
    add("stats", nargs="+", metavar="STATS.jsonl", help="files of --stats-file")
    add("--output", required=True, metavar="FOLDER", help="write report.md, report.html and figures there")
    baseline = "run to measure speed-up over, in wall-clock time (default: speed-up in iterations over greedy decoding)"
    add("--baseline", metavar="STATS.jsonl", help=baseline)
    traces = "file of --trace-file of each run: adds the calibration of the drafter's probabilities"
    add("--traces", nargs="+", metavar="FILE", help=traces)
    return parser


def run(argv: Sequence[str]) -> None:
    """Parse the arguments, read the runs and write the report."""
    args = get_parser().parse_args(argv)
    runs, baseline = load_runs(args.stats, args.baseline, args.traces)
    report = write_up(runs, baseline, shlex.join(["spec-dec-report", *argv]))
    folder = Path(args.output)
    for name, png in report.figures.items():
        write_atomically(folder / name, png, "--output")
    write_atomically(folder / "report.md", report.markdown(), "--output")
    write_atomically(folder / "report.html", report.html(), "--output")
    print(f"{folder / 'report.html'}: written; report.md beside it has the figures in files")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `spec-dec-report`."""
    return run_command("spec-dec-report", run, argv)


if __name__ == "__main__":
    sys.exit(main())
