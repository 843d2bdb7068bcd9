"""The page in a real browser: it translates while one types, offline, on a screen and on a phone."""

from collections.abc import Iterator
from typing import Any

import pytest
from selenium.webdriver.support.ui import WebDriverWait

from fairseq_plugins.serving.models import ServedModel
from tests.pages.browser import NEEDS_BROWSER, Page, watched
from tests.pages.conftest import driver  # noqa: F401
from tests.serving.running import Client

pytestmark = NEEDS_BROWSER
TEXT = "A man is riding a bicycle in the park."
CONTROL, ENTER, ESCAPE = "\ue009", "\ue007", "\ue00c"


@pytest.fixture
def page(driver: Any, client: Client) -> Iterator[Page]:  # noqa: F811
    with watched(driver, client.url) as page:
        driver.get("about:blank")
        driver.get(f"{client.url}/")
        wait(page, lambda: page.script("return byId('target').value") == "de")
        yield page


def wait(page: Page, condition: Any) -> None:
    WebDriverWait(page.driver, 20, 0.03).until(lambda _: condition())


def shown(page: Page) -> str:
    return page.script("return byId('output').textContent")


def test_translating_while_one_types(page: Page, served: ServedModel) -> None:
    assert page.script("return document.activeElement.id") == "text" and page.one("#copy").get_attribute("disabled")
    typed = ""
    for part in (TEXT[:20], TEXT[20:], "\n\nTwo dogs play in the snow."):
        page.press(part, into="#text")
        typed += part
        expected = "\n\n".join(served.model.translate(typed.split("\n\n")))
        wait(page, lambda expected=expected: shown(page) == expected and page.one("#copy").is_enabled())
    numbers = page.one("#numbers").text
    assert "drafted tokens accepted" in numbers and "tokens per iteration" in numbers and numbers.endswith(" ms")
    assert page.one("#count").text == f"{len(typed)} / 4000"
    page.press(ESCAPE, into="#text")
    wait(page, lambda: shown(page) == "")
    assert page.one("#text").get_attribute("value") == "" and page.one("#numbers").text == ""


def test_tokens_show_what_was_drafted(page: Page, served: ServedModel) -> None:
    page.press(TEXT, into="#text")
    expected = served.model.translate(TEXT, return_scores=True)
    wait(page, lambda: shown(page) == expected.text)
    page.one("#tokens").click()
    assert shown(page) == expected.text and len(page.all("#output .token")) == len(expected.tokens)
    accepted = len(page.all("#output .token.accepted"))
    assert accepted + len(page.all("#output .token.own")) == len(expected.tokens)
    assert page.one("#legend").is_displayed()
    page.one("#tokens").click()
    assert not page.all("#output .token") and not page.one("#legend").is_displayed()


def test_copying_with_the_keyboard(page: Page, served: ServedModel) -> None:
    permissions = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    page.driver.execute_cdp_cmd("Browser.grantPermissions", permissions)
    page.press(TEXT, into="#text")
    wait(page, lambda: page.one("#copy").is_enabled())
    page.press(CONTROL, ENTER, into="#text")
    wait(page, lambda: page.one("#copy").text == "Copied")
    assert page.script("return navigator.clipboard.readText()") == served.model.translate(TEXT)


def test_errors_are_shown_and_pass(page: Page, served: ServedModel) -> None:
    page.script("byId('text').value = 'Yes. '.repeat(17); byId('text').dispatchEvent(new Event('input'))")
    wait(page, lambda: "has 17 sentences" in page.one("#error").text)
    page.driver.get_log("browser")  # the refused request
    page.press(ESCAPE, into="#text")
    page.press("People", into="#text")
    wait(page, lambda: shown(page) == served.model.translate("People"))
    assert page.one("#error").text == ""


def test_the_interface_is_documented_offline(page: Page, client: Client) -> None:
    page.driver.get(f"{client.url}/docs")
    wait(page, lambda: len(page.all(".opblock")) > 8)
    assert "/v1/translate" in page.one("#swagger-ui").text
