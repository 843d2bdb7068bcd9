"""Templates of HTML pages, with shared colours, controls, dark mode and addresses; JSON data for them."""

import json
from importlib import resources
from typing import Any

_SHARED = {"@@COLOURS@@": "colours.css", "@@SHARED@@": "page.js"}


def template(name: str) -> str:
    """Return a page's HTML with the shared parts inserted; other markers are the page's own."""
    folder = resources.files("fairseq_plugins.pages")
    text = folder.joinpath(name).read_text(encoding="utf-8")
    for marker, file in _SHARED.items():
        text = text.replace(marker, folder.joinpath(file).read_text(encoding="utf-8"))
    return text


def page_json(value: Any) -> str:
    """Return JSON for a script element of a page; < is escaped, so that a token </script> does not end the element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")
