"""A page in a real browser, for tests of pages."""

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
CHROMEDRIVER = shutil.which("chromedriver")
NEEDS_BROWSER = [
    # One browser at a time: tests measure seconds.
    pytest.mark.xdist_group("browser"),
    pytest.mark.skipif(
        CHROMIUM is None or CHROMEDRIVER is None,
        reason="no chromium with chromedriver here; on Debian: apt-get install chromium chromium-driver",
    ),
]

ARGUMENTS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --window-size=1280,900"
).split()
UP, DOWN, LEFT, RIGHT, HOME, END, TAB, ESCAPE = "\ue013\ue015\ue012\ue014\ue011\ue010\ue004\ue00c"


class Page:
    """A page open in the browser."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, path: Path, address: str = "") -> float:
        """Open a file anew; return the seconds until it is loaded."""
        self.driver.get("about:blank")
        started = time.perf_counter()
        self.driver.get(path.as_uri() + address)
        return time.perf_counter() - started

    def look(self, theme: str = "light") -> None:
        """Set the size of the window, and the system's theme."""
        screen = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        scheme = {"name": "prefers-color-scheme", "value": theme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def script(self, text: str, *arguments: Any) -> Any:
        return self.driver.execute_script(text, *arguments)

    def all(self, css: str) -> list[Any]:
        return self.driver.find_elements("css selector", css)

    def one(self, css: str) -> Any:
        return self.driver.find_element("css selector", css)

    def texts(self, css: str) -> list[str]:
        return self.script("return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", css)

    def place(self, css: str) -> dict[str, float]:
        """Return the rectangle of the first matching element: left, top, right and bottom in pixels."""
        return self.script("return document.querySelector(arguments[0]).getBoundingClientRect().toJSON()", css)

    def press(self, *keys: str, into: str = "body") -> None:
        self.one(into).send_keys(*keys)

    def press_on(self, *keys: str) -> None:
        """Send keys to the focused element."""
        self.driver.switch_to.active_element.send_keys(*keys)

    @property
    def address(self) -> str:
        """Return the fragment of the address: #17/2."""
        return self.script("return location.hash")


@contextmanager
def watched(driver: Any, *allowed: str) -> Iterator[Page]:
    """A page; afterwards the console must be empty, and only these beginnings of addresses may have been requested."""
    driver.get_log("browser")
    driver.get_log("performance")
    page = Page(driver)
    page.look()
    yield page
    assert driver.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    urls = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert [url for url in urls if not url.startswith(("data:", "about:", *allowed))] == []
