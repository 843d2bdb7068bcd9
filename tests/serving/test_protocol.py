"""Requests that do not arrive end in a bounded time."""

import http.client
import logging
import socket
import time
from collections.abc import Iterator

import pytest

from fairseq_plugins.serving.models import ServedModel
from fairseq_plugins.serving.settings import Settings
from tests.serving.running import Client, request, serving

SECONDS = 0.5
ASKED = request("/translate", b'{"q": "People", "target": "de"}')


@pytest.fixture(scope="module")
def hasty() -> Iterator[Client]:
    """A server whose requests have to arrive soon; their model is broken, so that it answers at once."""
    with serving([ServedModel("none.en-de"), Unloaded("none.en-fr")], Settings(timeout=SECONDS)) as client:
        yield client


class Unloaded(ServedModel):
    """A model that counts as ready without being loaded: a server whose models are all broken ends."""

    def load(self) -> None:
        self.state = "ready"


def trickle(client: Client, begin: bytes, more: bytes) -> bytes:
    """Send a byte more every 0.05 seconds until the server closes; return what it has sent."""
    answers = b""
    with socket.create_connection(("127.0.0.1", client.port), timeout=0.05) as connection:
        connection.sendall(begin)
        for number in range(200):
            try:
                received = connection.recv(10_000)
                answers += received
                if not received:
                    return answers
            except TimeoutError:
                connection.sendall(more[number : number + 1])
            except ConnectionResetError:
                return answers
    raise AssertionError(f"still open; received {answers!r}")


@pytest.mark.parametrize(
    ("begin", "more", "status"),
    [
        (b"", b"", b""),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: ", b"x" * 200, b""),
        (ASKED[:-1].replace(b": 31", b": 300"), b" " * 200, b"408"),
        (b"POST /none HTTP/1.1\r\nHost: x\r\nContent-Length: 300\r\n\r\n", b" " * 200, b"404"),
        (b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" + ASKED[:-1], b"", b"200"),
    ],
    ids=["nothing", "headers", "body", "body after its answer", "body of a second request"],
)
def test_a_request_that_does_not_come_whole(
    hasty: Client, begin: bytes, more: bytes, status: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="spec-dec-serve")
    begun = time.monotonic()
    answers = trickle(hasty, begin, more)
    assert SECONDS - 0.1 < time.monotonic() - begun < 4
    assert answers[9:12] == status
    if b"/translate" in begin:
        _, _, last = answers.rpartition(b"HTTP/1.1 ")
        assert last.startswith(b"408 ") and b'{"error": "the request did not come whole within 0.5 s"}' in last
        hasty.wait_until(lambda: "POST /translate" in caplog.text, seconds=10)
        assert "POST /translate 408" in caplog.text


def test_the_time_of_a_request_begins_with_its_first_byte(hasty: Client) -> None:
    """A connection of a pool may have been idle before."""
    half = len(ASKED) // 2
    with socket.create_connection(("127.0.0.1", hasty.port), timeout=60) as connection:
        for _ in range(2):
            for part in (ASKED[:half], ASKED[half:]):
                time.sleep(0.6 * SECONDS)
                connection.sendall(part)
            assert connection.recv(10_000).startswith(b"HTTP/1.1 503 ")


def test_requests_that_arrive_keep_their_connection(hasty: Client) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", hasty.port, timeout=60)
    connection.connect()
    first = connection.sock
    for _ in range(5):
        for pause in (0.0, SECONDS / 3):
            connection.request("POST", "/translate", iter([b'{"q": ', b'"People", "target": "de"}']))
            time.sleep(pause)
            response = connection.getresponse()
            assert response.status == 503 and b"cannot be loaded" in response.read()
            assert connection.sock is first
    connection.close()
