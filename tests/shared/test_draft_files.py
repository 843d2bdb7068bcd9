"""Files of drafts that do not fit are refused."""

from pathlib import Path

import pytest

from fairseq_plugins.shared.draft_files import DraftFiles
from tests.errors import error_about


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        ("ein\n" * 4, "old.de", "has 4 lines, and text.en has 5; give a draft a line"),
        ("їжак 漢字\n" * 5, "old.de", "10 of 10 tokens are not in the target's dictionary"),
        ('{"text": "ein"}\n' * 5, "old.jsonl", "line 1 has no tokens; give text, or the jsonl"),
        (None, "old.de", "no such file; give a draft a line"),
        (None, "", "is a folder; give files, and other arguments before the option"),
    ],
)
def test_files_that_do_not_fit(tmp_path: Path, content: str | None, name: str, message: str) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_text(content, encoding="utf-8")
    with error_about("--drafts", message):
        DraftFiles([str(file)], 5, "text.en").check(str.split, {"ein", "Hund"}.__contains__)


def test_lines_are_cut_and_tokens_are_not(tmp_path: Path) -> None:
    (tmp_path / "a.de").write_text("ein Hund\n\n")
    (tmp_path / "b.jsonl").write_text('{"tokens": ["ein", "Hund"], "text": "x"}\n{"error": "too long"}\n')
    files = DraftFiles([str(tmp_path / "a.de"), str(tmp_path / "b.jsonl")])
    assert files.tokens(0, list) == [list("ein Hund"), ["ein", "Hund"]] and files.tokens(1, list) == [[], []]
    with error_about("--drafts", "a.de: has 2 lines, and there is a sentence 3; give a draft a line, an empty"):
        files.tokens(2, list)
