"""Templates of HTML pages, with shared colours, controls, dark mode and addresses."""

from importlib import resources

_SHARED = {"@@COLOURS@@": "colours.css", "@@SHARED@@": "page.js"}


def template(name: str) -> str:
    """Return a page's HTML with the shared parts inserted; other markers are the page's own."""
    folder = resources.files("fairseq_plugins.pages")
    text = folder.joinpath(name).read_text(encoding="utf-8")
    for marker, file in _SHARED.items():
        text = text.replace(marker, folder.joinpath(file).read_text(encoding="utf-8"))
    return text
