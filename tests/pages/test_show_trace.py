"""The page's data, and errors of the command."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fairseq_plugins.decoding.recording.trace import read_trace
from fairseq_plugins.pages import trace_page
from fairseq_plugins.pages.show_trace import main
from fairseq_plugins.pages.trace_page import acceptance
from tests.pages.trace_samples import SPECIAL, header, random_trace, write


def run(capsys: pytest.CaptureFixture, *argv: str) -> tuple[int, str, str]:
    """Write the page of trace `argv[0]` to TRACE.html; return the exit status and what is printed."""
    trace, *options = argv
    status = main([trace, "--html", f"{trace}.html", *options])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def embedded(html: str, name: str) -> list[Any]:
    """The JSON lines of one data element of a page."""
    (text,) = re.findall(rf'<script type="application/json" id="{name}">(.*?)</script>', html, flags=re.DOTALL)
    return [json.loads(line) for line in text.split("\n")] if text else []


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["{folder}/none"], "none: cannot be read"),
        (["{folder}/foreign"], "foreign, line 1: not the header of a trace"),
        (["{folder}/cut"], "cut, line 3: is truncated"),
        (["{folder}/cut", "--sentence", "0"], "cut, line 3: is truncated"),
        (["{folder}/t", "--sentence", "99"], "--sentence 99: is not in {folder}/t, which has 3 sentences, from 0 to 2"),
        (["{folder}/t", "--html", "{folder}/t/p.html"], "--html {folder}/t/p.html: t is a file; give a folder"),
        (["{folder}/t", "--html", "{folder}/new/p.html"], "--html {folder}/new/p.html: cannot be written"),
        (["{folder}/t", "--html", "{folder}/./t"], "--html {folder}/./t: is an input of this command"),
    ],
)
def test_one_line_errors(tmp_path: Path, capsys: pytest.CaptureFixture, argv: list[str], message: str) -> None:
    path = random_trace(tmp_path / "t", 3)
    lines = Path(path).read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "foreign").write_text('{"id": 0, "tokens": 12}\n', encoding="utf-8")
    (tmp_path / "cut").write_text("".join(lines[:2]) + lines[2][:40], encoding="utf-8")
    status, out, err = run(capsys, *(word.format(folder=tmp_path) for word in argv))
    assert status == 2 and out == ""
    assert len(err.splitlines()) == 1
    assert f"error: {tmp_path}/"[:7] in err and message.format(folder=tmp_path) in err
    assert not list(tmp_path.rglob("*.html"))


def test_page_holds_everything(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    target = tmp_path / "new" / "page.html"
    target.parent.mkdir()
    status, out, err = run(capsys, random_trace(tmp_path / "t", 30), "--html", str(target))
    assert (status, out) == (0, "") and str(target) in err  # --html /dev/stdout is the page alone
    html = target.read_text(encoding="utf-8")
    (summary,) = embedded(html, "summary")
    assert summary["ids"] == list(range(30)) and summary["note"] == ""
    assert re.search(r" · drafts accepted up to position 1: \d+%, 2: ", summary["about"])
    assert len(embedded(html, "texts")) == len(embedded(html, "iterations")) == 30
    trace = read_trace(str(tmp_path / "t"))
    for original, (source, _, output, log_probs), notes in zip(
        trace.sentences, embedded(html, "texts"), embedded(html, "iterations"), strict=True
    ):
        assert [summary["source"][n] for n in source] == [trace.source_symbols[n] for n in original.source]
        assert [summary["target"][n] for n in output] == [trace.target_symbols[n] for n in original.output]
        assert log_probs == original.log_probs
        assert [[summary["reasons"][n] for n in row[6]] for row in notes] == [row.why for row in original.iterations]
    assert "@@SUMMARY@@" not in html


def test_empty_trace(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = write(tmp_path / "t", [header(SPECIAL, SPECIAL)])
    assert run(capsys, path)[0] == 0
    (summary,) = embedded((tmp_path / "t.html").read_text(encoding="utf-8"), "summary")
    assert summary["ids"] == []
    assert "has no sentences" in run(capsys, path, "--sentence", "1")[2]


def test_acceptance_by_hand() -> None:
    """Accepted: 2, then a rejection; 1, and 3, to the end of a sentence; 0, then a rejection.

    Position 1: accepted in three, rejected in one: 3/4. Position 2: the sentence that ended after 1 is not counted:
    2 of 2. Position 3: 1 of 2.
    """
    ends = Counter([(2, True), (1, False), (3, False), (0, True)])
    assert acceptance(ends) == [3 / 4, 3 / 4, 3 / 8]
    assert acceptance(Counter([(0, True)])) == acceptance(Counter()) == []


def test_a_page_ends_where_a_browser_is_full(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target = random_trace(tmp_path / "t", 50), tmp_path / "page.html"
    for limit, most, options, ids in (
        ("MAX_SENTENCES", 20, [], list(range(20))),
        ("MAX_SENTENCES", 20, ["--sentence", "9", "7"], [9, 7]),
        ("MAX_BYTES", 1, [], [0]),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(trace_page, limit, most)
            status, _, err = run(capsys, path, "--html", str(target), *options)
        note = "" if options else f"The first {len(ids)} sentences: a browser takes no more"
        noted = err.removesuffix(f"{target}: written; open it in a browser\n")
        (summary,) = embedded(target.read_text(encoding="utf-8"), "summary")
        assert (status, noted.strip(), summary["note"], summary["ids"]) == (0, note, note, ids)
