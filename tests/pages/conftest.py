"""One browser for all tests of pages."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.pages.browser import ARGUMENTS, CHROMEDRIVER, CHROMIUM, Page


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="no selenium here; pip install selenium")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in [*ARGUMENTS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"]:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(CHROMEDRIVER))
    browser.get("about:blank")  # the new tab's page, which some versions open, requests things itself
    yield browser
    browser.quit()


@pytest.fixture
def opened(driver: Any) -> Iterator[Page]:
    """A page; after the test the console must be empty, and nothing may have been requested."""
    driver.get_log("browser")
    driver.get_log("performance")
    page = Page(driver)
    page.look()
    yield page
    assert driver.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    urls = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert [url for url in urls if not url.startswith(("file:", "data:", "chrome:", "about:"))] == []
