"""The HTML files of this folder, with what pages share: colours, controls, dark mode, addresses."""

from importlib import resources

_SHARED = {"@@COLOURS@@": "colours.css", "@@SHARED@@": "page.js"}


def template(name: str) -> str:
    """Return a page's HTML with what is shared put in; other markers are the page's own."""
    folder = resources.files("fairseq_plugins.pages")
    text = folder.joinpath(name).read_text(encoding="utf-8")
    for marker, file in _SHARED.items():
        text = text.replace(marker, folder.joinpath(file).read_text(encoding="utf-8"))
    return text
