"""Write the table of backends into docs/how-it-works.md: python -m tests.backends_table."""

from pathlib import Path

from fairseq_plugins.decoding.backends import table

PAGE = Path(__file__).parents[1] / "docs" / "how-it-works.md"
_BEGIN, _END = "<!-- python -m tests.backends_table -->\n", "<!-- end -->"


def with_table(page: str) -> str:
    """Return the page with the table between its two marks."""
    before, rest = page.split(_BEGIN)
    return f"{before}{_BEGIN}{table()}\n{_END}{rest.split(_END, 1)[1]}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
