"""A server in this process, and a small client, for tests."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

from fairseq_plugins.serving.models import ServedModel
from fairseq_plugins.serving.process import Process
from fairseq_plugins.serving.settings import Settings
from tests.support import REPOSITORY

FOLDER = REPOSITORY / "checkpoints" / "multi30k.en-de"


def request(path: str, body: bytes) -> bytes:
    """Return a request with a body of JSON."""
    headers = f"Host: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return f"POST {path} HTTP/1.1\r\n{headers}\r\n\r\n".encode() + body


class Client:
    """Requests to a server at 127.0.0.1."""

    def __init__(self, port: int, server: Process | None = None) -> None:
        self.port, self.server = port, server
        self.url = f"http://127.0.0.1:{port}"

    def ask(
        self, method: str, path: str, body: Any = None, form: dict[str, str] | None = None, **headers: str
    ) -> tuple[int, dict[str, str], Any]:
        """Return status, headers and body; `body` is sent as JSON unless it is bytes, or chunks of them."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        data = body
        if form is not None:
            data, sent["Content-Type"] = urlencode(form), "application/x-www-form-urlencoded"
        elif body is not None and not isinstance(body, (bytes, Iterator)):
            data, sent["Content-Type"] = json.dumps(body), "application/json"
        try:
            connection.request(method, path, data, sent)
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        is_json = "json" in response.headers.get("Content-Type", "")
        return response.status, dict(response.headers), json.loads(text) if is_json and text else text

    def post(self, path: str, body: Any = None, **more: Any) -> Any:
        """Return the answer's body; the status must be 200."""
        status, _, answer = self.ask("POST", path, body, **more)
        assert status == 200, answer
        return answer

    def get(self, path: str) -> Any:
        """Return the answer's body; the status must be 200."""
        status, _, answer = self.ask("GET", path)
        assert status == 200, answer
        return answer

    def events(self, body: dict[str, Any]) -> list[tuple[str, Any]]:
        """Return the events of /v1/stream."""
        text = self.post("/v1/stream", body)
        found = []
        for part in text.split("\n\n"):
            fields = dict(line.split(": ", 1) for line in part.splitlines() if ": " in line)
            if "event" in fields:
                found.append((fields["event"], json.loads(fields["data"])))
        return found

    def send(self, path: str, body: Any) -> socket.socket:
        """Send a request, and return the open connection."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        connection.sendall(request(path, json.dumps(body).encode()))
        return connection

    def wait_until(self, condition: Any, seconds: float = 500) -> None:
        """Wait until a condition holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.02)


@contextmanager
def serving(models: list[ServedModel], settings: Settings, grace: float = 0.3) -> Iterator[Client]:
    """Serve models in a thread, once all of them have been loaded or are broken."""
    server = Process(models, settings, grace=grace)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 500
    while not server.started or any(model.state == "loading" for model in models):
        assert time.monotonic() < deadline and thread.is_alive()
        time.sleep(0.02)
    try:
        yield Client(server.servers[0].sockets[0].getsockname()[1], server)
    finally:
        server.should_exit = True
        thread.join(30)
