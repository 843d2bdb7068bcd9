"""One process runs all tests of this folder: only it imports transformers."""

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.xdist_group("conversion"))
