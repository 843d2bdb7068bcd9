"""One browser for all tests of pages."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.pages.browser import ARGUMENTS, CHROMEDRIVER, CHROMIUM, Page, watched


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
    with watched(driver, "file:", "chrome:") as page:
        yield page
