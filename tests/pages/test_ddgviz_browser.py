"""DDGviz in a real browser: drawing, keys, addresses and visible parts."""

import dataclasses
from pathlib import Path

import pytest

from fairseq_plugins.pages import ddgviz_figure
from tests.pages.browser import DOWN, ESCAPE, LEFT, NEEDS_BROWSER, RIGHT, UP, Page
from tests.pages.test_ddgviz import SENTENCES

pytestmark = NEEDS_BROWSER


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four sentences with the numbers 10, 20, 30 and 40."""
    names = ("arabic", "latin", "long", "all at once")
    sentences = [dataclasses.replace(SENTENCES[name], number=10 * i) for i, name in enumerate(names, start=1)]
    file = tmp_path_factory.mktemp("ddgviz") / "ddgviz.html"
    file.write_text(ddgviz_figure.page(sentences), encoding="utf-8")
    return file


def shown(page: Page) -> str:
    """Return the chosen sentence as shown, without its description."""
    return page.script("return byId('choice').selectedOptions[0].textContent").split(" ")[0]


def focused(page: Page) -> str:
    """Return the description of the focused token or cell."""
    return page.script("return document.activeElement.getAttribute('aria-label')") or ""


@pytest.mark.parametrize(("number", "name"), [(10, "arabic"), (20, "latin"), (30, "long")])
def test_everything_is_drawn(opened: Page, page: Path, number: int, name: str) -> None:
    opened.open(page, f"#{number}")
    sentence = SENTENCES[name]
    assert len(opened.all(".cell")) == len(sentence.labels) * len(sentence.predicted)
    assert opened.texts(".token text") == sentence.labels
    assert len(opened.all(".edge")) == len(sentence.trace.edges)
    assert len(opened.all(".group")) == len(sentence.trace.groups)


def test_the_address_names_the_sentence(opened: Page, page: Path) -> None:
    opened.open(page)
    assert shown(opened) == "10" and opened.address == "#10"
    opened.open(page, "#30")
    assert shown(opened) == "30"
    opened.script("location.hash = '#20'")
    assert opened.script("return new Promise((done) => setTimeout(() => done(byId('choice').value), 50))") == "1"
    opened.open(page, "#31")  # no such sentence
    assert shown(opened) == "10"


def test_keys_choose_the_sentence(opened: Page, page: Path) -> None:
    opened.open(page)
    opened.press(LEFT)  # the first one
    assert shown(opened) == "10" and not opened.one("#before").is_enabled()
    opened.press(RIGHT)
    assert shown(opened) == "20"
    opened.press(RIGHT, RIGHT, RIGHT)
    assert shown(opened) == "40" and not opened.one("#after").is_enabled()
    opened.one("#before").click()
    assert shown(opened) == "30"


def test_keys_move_between_cells(opened: Page, page: Path) -> None:
    opened.open(page, "#20")
    opened.script("document.querySelector('.token').focus()")
    assert focused(opened).startswith("token 1: ▁Ein")
    opened.press_on(UP)  # the top row
    opened.press_on(RIGHT, DOWN, DOWN)
    assert focused(opened).startswith("iteration 2, token 2: ▁Mann") and shown(opened) == "20"
    assert opened.one("#tip").is_displayed() and opened.one("#tip").text.startswith("iteration 2, token 2")
    opened.press_on(ESCAPE)
    assert not opened.one("#tip").is_displayed()
    opened.press(LEFT)
    assert shown(opened) == "10"
    # Arabic runs from right to left, and arrow keys move visually.
    opened.script("document.querySelector('.token').focus()")
    opened.press_on(LEFT)
    assert focused(opened).startswith("token 2: ")


@pytest.mark.parametrize("width", [1400, 400])
def test_tokens_and_numbers_stay_visible(opened: Page, page: Path, width: int) -> None:
    opened.look(width, 800)
    opened.open(page, "#30")
    opened.script("scrollTo(0, document.documentElement.scrollHeight); byId('drawing').scrollTo(400, 600)")
    assert opened.script("return byId('drawing').scrollTop") == 600
    header, token = opened.place("header"), opened.place(".token")
    assert header["top"] == 0
    drawing = opened.place("#drawing")
    assert drawing["top"] <= token["top"] and token["bottom"] <= drawing["top"] + 60
    opened.script("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert abs(opened.place("#iterations rect")["left"] - drawing["left"]) < 2


def test_right_to_left_starts_at_the_right(opened: Page, page: Path) -> None:
    opened.look(400, 800)
    opened.open(page, "#10")
    first = opened.place(".token")
    assert 0 < first["left"] and first["right"] < 400


def test_title_and_legend_are_visible(opened: Page, page: Path) -> None:
    for width, height in ((1280, 900), (390, 844)):
        opened.look(width, height)
        opened.open(page, "#20")
        assert opened.one("h1").is_displayed()
        assert opened.place(".legend")["bottom"] < opened.place("#drawing")["top"] + 1 < height
        assert "x: the source" in opened.one(".legend").text and "purple is 0" in opened.one(".legend").text
