"""`spec-dec-report`: counts by hand, files and refusals."""

import datetime
import json
import math
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from fairseq_plugins.decoding.recording.stats import DecodingStats, SentenceStats
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.pages import report
from fairseq_plugins.pages.findings import acceptance_by_position, drafter_reliability, speed_ups
from fairseq_plugins.pages.runs import Run, load_runs
from fairseq_plugins.shared.machine import machine
from tests.pages.trace_samples import SPECIAL, header, note, sentence, write

PNG = b"\x89PNG\r\n\x1a\n"


def _sentence(number: int, emitted: list[int], seconds: float = 0.5, batch_size: int = 1) -> SentenceStats:
    return SentenceStats(number, 7, sum(emitted), len(emitted), emitted, batch_size, seconds)


def _run_of(*emitted: list[int], seconds: float = 0.5) -> Run:
    return Run("run", "run.jsonl", {number: _sentence(number, gains, seconds) for number, gains in enumerate(emitted)})


def _write(path: Path, sentences: list[SentenceStats]) -> str:
    path.write_text("".join(json.dumps(vars(sentence)) + "\n" for sentence in sentences))
    return str(path)


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    """Three stats files: greedy, gad, and gad++ over the same 40 sentences."""
    files = []
    for name, gains in (("greedy", [1] * 12), ("gad", [4, 3, 1, 4]), ("gad++", [6, 6])):
        sentences = [_sentence(n, gains[n % 2 :] if name != "gad++" else gains, 0.01 * len(gains)) for n in range(40)]
        files.append(_write(tmp_path / f"{name}.jsonl", sentences))
    return files


# Counts


def test_speed_up_in_time() -> None:
    """Only common sentences are compared."""
    assert speed_ups(_run_of([4], [4], seconds=0.25), _run_of([1] * 4, seconds=1.0)) == {0: 4.0}
    with pytest.raises(ConfigurationError, match="no sentence number in common"):
        speed_ups(_run_of([1]), Run("other", "other.jsonl", {7: _sentence(7, [1])}))


def test_acceptance_by_position() -> None:
    """Gains 3, 1 and then, at the end of sentences, 2 and 4.

    Position 1: accepted in 3, 2 and 4, rejected in 1: 3/4. Position 2: accepted in 3 and 4; the sentence that ended
    with 2 is not counted: 1. Position 3: rejected in 3, accepted in 4: 1/2.
    """
    given, together = acceptance_by_position(_run_of([3, 2], [1, 4]))
    assert given == [3 / 4, 1, 1 / 2]
    assert together == [3 / 4, 3 / 4, 3 / 8]


# The report


def _image_names(markdown: str) -> list[str]:
    return re.findall(r"!\[[^]]+\]\(([^)]+)\)", markdown)


def test_report_in_iterations(runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out" / "report"
    assert report.main([*runs[1:], "--output", str(folder)]) == 0
    assert "report.html: written; report.md beside it" in capsys.readouterr().out
    markdown = (folder / "report.md").read_text(encoding="utf-8")
    names = ["speed-up", "accepted-by-position"]
    assert _image_names(markdown) == [f"{name}.png" for name in names]
    for name in names:
        assert (folder / f"{name}.png").read_bytes().startswith(PNG)
    summary, latency = (
        [cell.strip() for cell in row.split("|")[1:-1]] for row in markdown.splitlines() if row.startswith("| gad  ")
    )
    # 20 sentences of 4 + 3 + 1 + 4 tokens in 4 iterations, and 20 of 3 + 1 + 4 in 3; median of 12/4 and 8/3
    assert summary[:5] == ["gad", "40", "400", "140", "2.86"]
    assert summary[6] == "2.83"
    # 10 ms an iteration of the longer one
    assert latency == ["gad", *["40.0"] * 5]
    assert "for wall-clock time give `--baseline`" in markdown
    assert not list(folder.glob("*.partial"))


def test_wall_clock_time_over_a_baseline(runs: list[str], tmp_path: Path) -> None:
    """The HTML file contains all figures, and names of files as they are."""
    odd = Path(runs[1]).rename(tmp_path / "exact <b>|<b>.jsonl")
    assert report.main([str(odd), runs[2], "--baseline", runs[0], "--output", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    sources = re.findall(r'\bsrc="([^"]+)"', page)
    assert len(set(sources)) == 2 and all(source.startswith("data:image/png;base64,") for source in sources)
    assert "Speed-up of a sentence: its wall-clock time in greedy divided by that in the run." in page
    assert "exact &lt;b&gt;|&lt;b&gt;" in page


def _traced(path: Path, gains: list[int], probabilities: list[float | None]) -> str:
    """A trace of 40 sentences whose drafts emit these numbers of tokens; of every second sentence without the first."""
    sentences = []
    for number in range(40):
        notes = []
        for emitted in gains[number % 2 if len(gains) > 2 else 0 :]:
            size = len(probabilities)
            one = note([5] * size, [5] * (emitted - 1) + [6] * (size + 2 - emitted), emitted - 1, emitted)
            notes.append({**one, "drafter_log_probs": [value and math.log(value) for value in probabilities]})
        sentences.append(sentence(number, [5, 2], [5] * sum(len(one["why"]) for one in notes), notes))
    symbols = [*SPECIAL, "a", "b", "c"]
    return write(path, [header(symbols, symbols), *sentences])


def test_reliability_of_a_drafter(runs: list[str], tmp_path: Path) -> None:
    file = _traced(tmp_path / "gad.trace", [4, 3, 1, 4], [0.95, 0.85, None])
    counts = drafter_reliability(load_runs([runs[1]], traces=[file])[0][0])
    # In 60 drafts all three are accepted, in 40 the third is rejected, in 40 the first; the third has no probability.
    assert counts.tokens[8:].tolist() == [100, 140] and counts.right[8:].tolist() == [100, 100]
    assert counts.total == 240
    silent = _traced(tmp_path / "gad++.trace", [6, 6], [None] * 5)
    assert report.main([*runs[1:], "--traces", file, silent, "--output", str(tmp_path / "out")]) == 0
    markdown = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert (tmp_path / "out" / "reliability.png").read_bytes().startswith(PNG)
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in markdown.splitlines()]
    assert ["gad", "240", f"{(140 * (0.95 - 5 / 7) + 100 * 0.15) / 240:.3f}"] in cells
    assert ["gad", "0.8 to 0.9", "100", "0.850", "1.000"] in cells
    assert ["", "0.9 to 1", "140", "0.950", "0.714"] in cells
    assert "Without probabilities of a drafter: gad++." in markdown


def test_what_is_left_out_is_named(runs: list[str], tmp_path: Path) -> None:
    batches = _write(tmp_path / "a.jsonl", [_sentence(n, [2, 2], batch_size=8) for n in range(8)])
    silent = _traced(tmp_path / "silent", [6, 6], [None] * 5)
    for arguments, messages in (
        ([batches], ["decode with `--batch-size 1`", "Left out: needs a trace. Add `--traces`"]),
        ([runs[0]], ["nothing was drafted"]),
        ([runs[2], "--traces", silent], ["Left out: the traces have no probabilities of a trained"]),
    ):
        assert report.main([*arguments, "--output", str(tmp_path / "out")]) == 0
        markdown = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
        assert all(message in markdown for message in messages) and "reliability.png" not in markdown


# Errors


def _record(**changed: Any) -> str:
    return json.dumps({**vars(_sentence(1, [2, 2])), **changed})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "stats.jsonl: has no complete line; "),
        (f"{_record()}\n" + _record(id=2)[:30], "line 2: truncated; decode again, or drop the line: head -n 1 "),
        (f"{_record()}\nnot json\n", "line 2: not of --stats-file (JSON is malformed: "),
        (
            '{"loss": 1}\n',
            "line 1: not of --stats-file (Object missing required field `id`); give a file that --stats-",
        ),
        (f"{_record(tokens=5)}\n", "line 1: not of --stats-file ('emitted' must be the tokens of each iteration and "),
        (
            f"{_record(seconds='fast')}\n",
            "line 1: not of --stats-file (Expected `float`, got `str` - at `$.seconds`)",
        ),
        (f"{_record()}\n{_record()}\n", "line 2: sentence 1 for the second time; give one run per file"),
        (b"\xff\xfe\x00", "is not text; "),
    ],
)
def test_invalid_stats_are_refused(
    content: str | bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "stats.jsonl"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert report.main([str(file), "--output", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error and error.startswith(f"spec-dec-report: error: {file}") and "\n" not in error
    assert not (tmp_path / "out").exists()


def test_errors(runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "stats.jsonl.partial").write_text(_record() + "\n")
    other = _traced(tmp_path / "other", [6, 6], [None] * 5)
    for arguments, message in (
        ([tmp_path / "stats.jsonl"], "the run broke off, "),
        ([runs[0], "--baseline", runs[0]], f"{runs[0]}: given twice; give each run once"),
        ([runs[0], "--baseline", "none"], "none: No such file or directory; give a file that --stats-file wrote"),
        ([runs[1], "--traces", other], f"--traces {other}: sentence 0 has other iterations than in {runs[1]}; give "),
        ([runs[1], "--traces", other, other], "--traces: 2 given for 1 stats files; give one for each"),
        ([runs[1], "--traces", tmp_path / "none"], "cannot be read (No such file or directory)"),
        ([runs[0], "--output", runs[1]], "cannot be written"),
    ):
        assert report.main(["--output", str(tmp_path / "out"), *map(str, arguments)]) == 2, message
        error = capsys.readouterr().err.strip()
        assert message in error and "\n" not in error
    assert not (tmp_path / "out").exists()


def test_report_names_commands_and_machines(runs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["fairseq-generate", "--path", "verifier.pt", "--trace-file", "t"])
    monkeypatch.delattr(sys, "last_type", raising=False)
    stats = DecodingStats("gad", str(tmp_path / "new.jsonl"))
    stats.record([_sentence(n, [2, 5]) for n in range(3)], 1.0)
    stats.close()
    arguments = [str(tmp_path / "new.jsonl"), runs[0], "--output", str(tmp_path / "out")]
    assert report.main(arguments) == 0
    text = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert f"\n\nnew: {report.plain(machine())}\n\n    fairseq-generate --path verifier.pt --trace-file t\n\n" in text
    assert "Of new it includes tracing: take times from a run without `--trace-file`." in text
    assert "\n\ngreedy: not in its statistics, of an earlier version\n\n" in text
    command = text.split(f"this report: {datetime.date.today().isoformat()}\n\n")[1].split("\n\n")[0]
    assert shlex.split(command) == ["spec-dec-report", *arguments]
