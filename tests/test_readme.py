"""What the README copies from the code is what the code says."""

from pathlib import Path

from fairseq_plugins.decoding.methods import table

README = Path(__file__).parents[1] / "README.md"


def test_the_table_of_methods_is_that_of_their_specs() -> None:
    assert table() in README.read_text(encoding="utf-8")


def test_how_it_works_stays_short() -> None:
    assert len((README.parent / "docs" / "how-it-works.md").read_text(encoding="utf-8").splitlines()) <= 40
