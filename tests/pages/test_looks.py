"""All pages in a real browser, light and dark, on a screen and on a phone."""

import json
from pathlib import Path

import pytest

from fairseq_plugins.decoding.recording.stats import SentenceStats
from fairseq_plugins.pages import ddgviz_figure, report, show_trace
from tests.pages.browser import NEEDS_BROWSER, Page
from tests.pages.test_ddgviz import SENTENCES
from tests.pages.trace_samples import case_study

pytestmark = NEEDS_BROWSER


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One page of every kind."""
    folder = tmp_path_factory.mktemp("pages")
    made = {"trace": folder / "trace.html", "ddgviz": folder / "ddgviz.html", "report": folder / "report/report.html"}
    assert show_trace.main([case_study(folder / "trace.jsonl"), "--html", str(made["trace"])]) == 0
    made["ddgviz"].write_text(ddgviz_figure.page([SENTENCES["long"]]), encoding="utf-8")
    sentences = [SentenceStats(n, 7, 8 + n % 3, 3, [4, 3, 1 + n % 3], 1, 0.5) for n in range(20)]
    (folder / "stats.jsonl").write_text("".join(json.dumps(vars(sentence)) + "\n" for sentence in sentences))
    assert report.main([str(folder / "stats.jsonl"), "--output", str(made["report"].parent)]) == 0
    return made


def brightness(colour: str) -> float:
    """Of rgb(r, g, b), from 0 to 1."""
    red, green, blue = (int(value) for value in colour.removeprefix("rgb(").removesuffix(")").split(","))
    return (0.299 * red + 0.587 * green + 0.114 * blue) / 255


def ground_and_text(page: Page) -> tuple[float, float]:
    style = "const style = getComputedStyle(document.body); return [style.backgroundColor, style.color]"
    ground, text = page.script(style)
    return brightness(ground), brightness(text)


@pytest.mark.parametrize("name", ["trace", "ddgviz", "report"])
def test_pages_follow_the_systems_theme(opened: Page, pages: dict[str, Path], name: str) -> None:
    """Until a button chooses the other one."""
    opened.open(pages[name])
    for theme in ("light", "dark"):  # the theme may change while the page is open
        opened.look(theme=theme)
        ground, text = ground_and_text(opened)
        assert (ground < 0.2 and text > 0.8) if theme == "dark" else (ground > 0.9 and text < 0.2)
    if name != "report":
        opened.one("#theme").click()
        opened.look(theme="light")
        opened.look(theme="dark")
        assert ground_and_text(opened)[0] > 0.9 and opened.one("#theme").text == "Dark"


@pytest.mark.parametrize("name", ["trace", "ddgviz", "report"])
def test_no_horizontal_scrolling_on_a_phone(opened: Page, pages: dict[str, Path], name: str) -> None:
    opened.look(400, 800)
    opened.open(pages[name])
    assert opened.script("return document.documentElement.scrollWidth") <= 400
