"""One server for all tests."""

from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi", reason="pip install '.[serve]'")

from fairseq_plugins.serving.models import ServedModel  # noqa: E402
from fairseq_plugins.serving.settings import Settings  # noqa: E402
from tests.serving.running import FOLDER, Client, serving  # noqa: E402

LIMITS = Settings(max_characters=4000, timeout=200, origins=("https://example.org",))


@pytest.fixture(scope="session")
def served() -> ServedModel:
    return ServedModel(str(FOLDER), threads=1, max_waiting=16)


@pytest.fixture(scope="session")
def client(served: ServedModel) -> Iterator[Client]:
    """A server with a model, and one that is broken."""
    broken = ServedModel("/nonexistent/broken.en-fr", threads=1)
    with serving([served, broken], LIMITS) as client:
        yield client
