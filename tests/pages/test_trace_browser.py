"""The page of a trace in a real browser: opening, stepping, searching and sorting, without console messages."""

import time
from pathlib import Path

import pytest

from fairseq_plugins.pages.show_trace import main
from tests.pages.browser import DOWN, END, HOME, LEFT, NEEDS_BROWSER, RIGHT, Page
from tests.pages.trace_samples import EOS, SPECIAL, case_study, header, note, random_trace, sentence, write

pytestmark = NEEDS_BROWSER


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("paper")
    return html(case_study(folder / "t.jsonl"))


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return html(random_trace(tmp_path_factory.mktemp("hundred") / "t.jsonl", 100))


def html(trace: str) -> Path:
    target = Path(trace).with_suffix(".html")
    assert main([trace, "--html", str(target)]) == 0
    return target


def ids(page: Page) -> list[int]:
    """Numbers of the sentences in the drawn part of the list."""
    return [int(text.split(" ")[0].lstrip("#")) for text in page.texts(".row .faint")]


def marked(page: Page, kind: str) -> list[str]:
    return page.texts(f"#pairs .token.{kind}")


def test_steps_through_iterations(opened: Page, paper: Path) -> None:
    opened.open(paper)
    assert opened.script("return document.documentElement.dataset.ready") is not None
    assert opened.one("#heading").text == "Sentence 7"
    assert opened.one("#numbers").text == "5.00 tokens per iteration · 15 tokens · 3 iterations"
    assert opened.one("#source").text.startswith("According to the details provided")
    assert opened.one("#reference").text.startswith("Nach den vorliegenden Einzelheiten")
    # D and V under each other
    assert marked(opened, "accepted") == ["Nach", "den"] == marked(opened, "agrees")
    assert marked(opened, "bifurcation") == ["Angaben"] and marked(opened, "own") == ["vorliegenden"]
    assert opened.one("#status").text == (
        "Iteration 1 of 3: 2 of 10 drafted tokens accepted, then the verifier's own; bifurcation at position 3"
    )
    assert not opened.one("#previous").is_enabled()

    opened.press(RIGHT)  # right arrow
    assert opened.texts("#earlier .earlier") == ["Nach", "den", "vorliegenden"]
    assert marked(opened, "relaxed") == ["Angaben"] and marked(opened, "agrees")[0] == "Einzelheiten"
    assert marked(opened, "own") == ["worden"]
    assert opened.texts("#output .own") == ["vorliegenden", "worden"]
    assert len(opened.texts("#output .now")) == 10 and opened.texts("#output .later") == [".", "</s>"]

    opened.one("#next").click()
    assert opened.one("#status").text.startswith("Iteration 3 of 3") and marked(opened, "own") == []
    assert not opened.one("#next").is_enabled()
    opened.press(LEFT, LEFT, LEFT)  # left arrow, once more than there are iterations
    assert opened.one("#status").text.startswith("Iteration 1 of 3")
    opened.all("#pills button")[1].click()
    assert opened.one("#status").text.startswith("Iteration 2 of 3")
    assert opened.texts("#pills button small") == ["+3", "+10", "+2"]

    opened.press(LEFT)
    opened.one("#details summary").click()
    rows = [[cell.text for cell in row.find_elements("css selector", "td")] for row in opened.all("#table tr")]
    assert rows[0] == ["1", "Nach", "0.7788", "Nach", "0.7788", "accepted (top-1)"]
    assert rows[2] == ["3", "Angaben", "0.3679", "vorliegenden", "0.7788", "the verifier's own token"]
    assert rows[3][-1] == "discarded"


def test_the_page_follows_the_systems_theme(opened: Page, paper: Path) -> None:
    opened.open(paper)
    for theme in ("light", "dark"):  # the theme may change while the page is open
        opened.look(theme=theme)
        ground = opened.script("return getComputedStyle(document.body).backgroundColor")
        darkest, *_, lightest = sorted(map(int, ground[4:-1].split(",")))
        assert darkest >= 200 if theme == "light" else lightest < 100


def test_searches(opened: Page, hundred: Path) -> None:
    opened.open(hundred)
    assert opened.one("#count").text == "100 sentences"
    opened.press("FIRST42", into="#search")
    assert ids(opened) == [42] and opened.one("#count").text == "1 sentence"
    opened.one(".row").click()
    assert opened.one("#heading").text == "Sentence 42" and "first42" in opened.one("#source").text
    opened.one("#search").clear()
    opened.press("#17", into="#search")
    assert ids(opened) == [17]
    opened.one("#search").clear()
    opened.press("nowhere to be found", into="#search")
    assert ids(opened) == [] and opened.one("#count").text == "No sentence matches"


def test_sorts(opened: Page, hundred: Path) -> None:
    opened.open(hundred)
    for key in ("speed", "iterations", "id"):
        values = opened.script(f"return Object.fromEntries(summary.ids.map((id, n) => [id, sortKeys.{key}(n)]))")
        opened.one(f"#sort option[value={key}]").click()
        shown = [values[str(number)] for number in ids(opened)]
        assert len(shown) > 8 and shown == sorted(values.values(), reverse=key != "id")[: len(shown)]
    opened.one("#direction").click()
    assert ids(opened)[:3] == [99, 98, 97]


def test_keyboard_only(opened: Page, hundred: Path) -> None:
    opened.open(hundred)
    opened.press(DOWN, DOWN, into="#list")  # down
    assert opened.one("#heading").text == "Sentence 2"
    active = opened.one("#list").get_attribute("aria-activedescendant")
    assert active == opened.one("[aria-selected=true]").get_attribute("id")
    opened.press(END, into="#list")  # end
    assert opened.one("#heading").text == "Sentence 99" and 99 in ids(opened)
    assert opened.one("[aria-selected=true]").is_displayed()
    opened.press(HOME, RIGHT, into="#list")  # home, and a step from within the list
    assert opened.one("#heading").text == "Sentence 0" and opened.one("#status").text.startswith("Iteration 2")
    opened.press(RIGHT, into="#search")  # belongs to the text there
    assert opened.one("#status").text.startswith("Iteration 2")


def test_address_names_sentence_and_iteration(opened: Page, hundred: Path) -> None:
    def wait_for(address: str) -> None:
        deadline = time.monotonic() + 60
        while opened.address != address:
            assert time.monotonic() < deadline, opened.address
            time.sleep(0.05)

    opened.open(hundred)
    wait_for("#0/2")
    opened.press(DOWN, into="#list")
    wait_for("#1/1")
    for _ in range(3):
        opened.press(RIGHT, LEFT)
    opened.press(RIGHT)
    wait_for("#1/2")
    opened.driver.get(f"{hundred.as_uri()}#71/2")
    assert opened.one("#heading").text == "Sentence 71" and opened.one("#status").text.startswith("Iteration 2")
    assert 71 in ids(opened)
    opened.driver.get(f"{hundred.as_uri()}#99999")
    assert opened.one("#heading").text == "Sentence 71"


def test_opens_where_tokens_are_accepted_before_a_rejection(opened: Page, tmp_path: Path) -> None:
    tokens, symbols = [4, 5, 6, EOS], [*SPECIAL, "star@@", "ring", "three"]
    undrafted = sentence(0, tokens, tokens, [note([], [token], 0, 1) for token in tokens])
    rest = [note([], [token], 0, 1) for token in tokens[1:]]
    rejected = sentence(1, tokens, tokens, [note([5, EOS], [4, EOS], 0, 1), *rest])
    accepted = sentence(2, tokens, tokens, [note([], [4], 0, 1), note([5, 6, 6], [5, 6, EOS, EOS], 2, 3)])
    records = [header(symbols, symbols), undrafted, rejected, accepted]
    opened.open(html(write(tmp_path / "t.jsonl", records)))
    assert opened.one("#heading").text == "Sentence 2"
    assert opened.one("#status").text.startswith("Iteration 2 of 2: 2 of 3")
    # Pieces of a word stand together, without their marks.
    assert opened.texts("#output .token") == ["star", "ring", "three", "</s>"]
    assert opened.texts("#output .joined") == ["ring"]


def test_right_to_left(opened: Page, tmp_path: Path) -> None:
    symbols, tokens = [*SPECIAL, "שלום", "עולם"], [4, 5, EOS]
    record = sentence(0, tokens, tokens, [note([4, 5], tokens, 2, 3)], tokens)
    opened.open(html(write(tmp_path / "t.jsonl", [header(symbols, symbols), record])))
    first, second = opened.all("#output .token")[:2]
    assert first.location["x"] > second.location["x"]


def test_tokens_are_escaped(opened: Page, tmp_path: Path) -> None:
    nasty = ["</script><script>alert(1)</script>", "<img src=x onerror=alert(2)>", "<!--", "&amp;", "${1}", "\u2028"]
    symbols = [*SPECIAL, *nasty]
    tokens = [*range(4, len(symbols)), EOS]
    iterations = [note(tokens, [*tokens, EOS], len(tokens), len(tokens))]
    opened.open(html(write(tmp_path / "t.jsonl", [header(symbols, symbols), sentence(0, tokens, tokens, iterations)])))
    assert opened.texts("#output .token")[:-1] == nasty
    assert opened.all("img") == [] and "<img src=x" in opened.one("#source").text
    assert not opened.one("#reference-part").is_displayed()
