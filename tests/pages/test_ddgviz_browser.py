"""DDGviz in a real browser: drawing, keys, addresses and visible parts."""

import dataclasses
from pathlib import Path

import pytest

from fairseq_plugins.pages import ddgviz
from tests.pages.browser import DOWN, ESCAPE, LEFT, NEEDS_BROWSER, RIGHT, UP, Page
from tests.pages.test_ddgviz import SENTENCES

pytestmark = NEEDS_BROWSER


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four sentences with the numbers 10, 20, 30 and 40."""
    names = ("arabic", "latin", "long", "all at once")
    sentences = [dataclasses.replace(SENTENCES[name], number=10 * i) for i, name in enumerate(names, start=1)]
    file = tmp_path_factory.mktemp("ddgviz") / "ddgviz.html"
    file.write_text(ddgviz.page(sentences), encoding="utf-8")
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


def test_keys_and_the_address_choose_the_sentence(opened: Page, page: Path) -> None:
    opened.open(page)
    opened.press(LEFT)  # the first one
    assert shown(opened) == "10" and opened.address == "#10" and not opened.one("#before").is_enabled()
    opened.press(RIGHT, RIGHT, RIGHT, RIGHT)
    assert shown(opened) == "40" and not opened.one("#after").is_enabled()
    opened.one("#before").click()
    assert shown(opened) == "30"
    opened.script("location.hash = '#20'")
    assert opened.script("return new Promise((done) => setTimeout(() => done(byId('choice').value), 50))") == "1"
    for address, number in (("#30", "30"), ("#31", "10")):  # no such sentence
        opened.open(page, address)
        assert shown(opened) == number


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
