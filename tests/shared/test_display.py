"""The progress bar: in place on a terminal, lines in a log."""

import io

import pytest

from fairseq_plugins.shared import display


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_has_lines_without_carriage_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", log := io.StringIO())
    with display.progress_bar(4, desc="quality", **{"mininterval": 0, "delay": 0}) as bar:
        for _ in range(4):
            bar.update(1)
            bar.refresh()
        bar.set_description("speed, batch 1")
    *lines, last = log.getvalue().splitlines()
    assert "\r" not in log.getvalue() and "quality: 50 %, 2 of 4 sentences, 00:00, about 00:00 left" in lines
    assert all(line.startswith("quality: ") for line in lines[:4]) and last.startswith("speed, batch 1: 100 %")


def test_a_quick_step_leaves_nothing_in_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", log := io.StringIO())
    with display.progress_bar(4) as bar:
        bar.update(4)
    assert log.getvalue() == ""


def test_a_terminal_has_one_line_that_disappears(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    with display.progress_bar(4) as bar:
        bar.update(4)
    assert terminal.getvalue().startswith("\r") and "\n" not in terminal.getvalue()
