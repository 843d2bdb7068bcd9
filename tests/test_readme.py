"""Check generated tables, links, page lengths and line widths of README and docs."""

import re
from pathlib import Path

import pytest

from tests import options_page, readme_results
from tests.options_page import PAGE, README, marked
from tests.support import REPOSITORY

PAGES = [README, *(REPOSITORY / name for name in ("CONTRIBUTING.md", "CHANGELOG.md"))]
DOCS = REPOSITORY / "docs"
MANUAL, NOTEBOOK = sorted(DOCS.glob("*.md")), sorted((DOCS / "notebook").glob("*.md"))
PAGES += MANUAL + NOTEBOOK


@pytest.mark.parametrize("name", ["decoding", "decoders", "training"])
def test_option_tables_are_current(name: str) -> None:
    table = marked(PAGE.read_text(encoding="utf-8"), name)[2]
    assert table == options_page.tables()[name], "write it anew: python -m tests.options_page"


def test_results_match_the_model_cards() -> None:
    table = marked(README.read_text(encoding="utf-8"), "results")[2]
    assert table == readme_results.table(), "write it anew: python -m tests.readme_results"
    assert len(table.splitlines()) >= 9


def test_index_has_every_page() -> None:
    for pages in (MANUAL, NOTEBOOK):
        linked = set(re.findall(r"\]\(([a-z0-9-]+\.md)\)", (pages[0].parent / "index.md").read_text(encoding="utf-8")))
        assert linked == {page.name for page in pages} - {"index.md"}


def test_every_command_is_listed() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    commands = set(re.findall(r"^| `(spec-dec-[a-z-]+)", index, re.MULTILINE)) - {""}
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    assert commands == set(re.findall(r"^(spec-dec-[a-z-]+) =", project, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_pages_are_short(page: Path) -> None:
    """Tables and program output may be wider."""
    text = page.read_text(encoding="utf-8")
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    printed = {line for language, block in fences if language in ("", "text") for line in block.splitlines()}
    wide = [line for line in text.splitlines() if len(line) > 120 and not line.startswith("|")]
    assert set(wide) <= printed
    assert len(text.splitlines()) <= (120 if page == README else 200)


def anchors(page: Path) -> set[str]:
    """Return GitHub's anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_heading_links_exist(page: Path) -> None:
    for target, heading in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text(encoding="utf-8")):
        linked = page.parent / target if target else page
        assert heading in anchors(linked), (target, heading)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert "://" in target or (page.parent / target).exists(), target
    for target in re.findall(r"\b(?:docs|tests|train_scripts|examples)/[\w./-]+\.(?:md|py|sh|svg|png)", text):
        assert (REPOSITORY / target).exists(), target


def test_the_picture_names_files() -> None:
    package = REPOSITORY / "fairseq_plugins"
    picture = (DOCS / "images" / "architecture.svg").read_text(encoding="utf-8")
    files = re.findall(r"[\w./]+\.(?:py|cpp|h)\b", re.sub(r"<(?:svg|style).*?>|http\S+", "", picture))
    assert len(files) >= 30
    folders = [package, *(package / "decoding" / name for name in ("native/csrc", "gpu", "reference"))]
    assert [file for file in files if not any((folder / file).is_file() for folder in folders)] == []
