"""Servers that a load test starts, as processes of their own at 127.0.0.1, and connections to them."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.serving.test_cli import free_port

# Seconds after which a server may close a connection.
_KEPT_ALIVE = 3


@dataclass
class Server:
    """A server's process."""

    folder: str
    threads: int
    port: int = field(default_factory=free_port)
    arguments: Sequence[str] = ()

    def start(self) -> float:
        """Start it; return the seconds until its first answer."""
        command = [sys.executable, "-m", "fairseq_plugins.serving.cli", self.folder, "--threads", str(self.threads)]
        command += ["--port", str(self.port), *self.arguments]
        first = {"q": ["1"], "source": "en", "target": "de"}
        started = time.perf_counter()
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        deadline = started + 120
        while time.perf_counter() < deadline and self.process.poll() is None:
            try:
                status, _ = asyncio.run(Connection(self.port).ask("/translate", first))
                if status == 200:
                    return time.perf_counter() - started
            except OSError:
                pass
            time.sleep(0.02)
        raise SystemExit("the server does not start")

    def close(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()

    def memory(self) -> float:
        """Return its resident memory in MiB."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * 4096 / 2**20


class Connection:
    """A connection to a server that is kept alive."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.used = 0.0

    async def send(self, path: str, body: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send a request."""
        if time.monotonic() - self.used > _KEPT_ALIVE:
            self.close()
        self.used = time.monotonic()
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        self.streams[1].write(head.encode() + data)
        await self.streams[1].drain()
        return self.streams

    async def ask(self, path: str, body: Any) -> tuple[int, Any]:
        """Return status and answer of a request."""
        reader, _ = await self.send(path, body)
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        size = int(head.split("content-length: ")[1].split("\r\n")[0])
        answer = await reader.readexactly(size)
        if "connection: close" in head:
            self.close()
        return int(head.split()[1]), json.loads(answer) if "json" in head else answer.decode()

    def close(self) -> None:
        """Leave at once."""
        if self.streams is not None:
            self.streams[1].close()
        self.streams = None


@asynccontextmanager
async def connection(port: int) -> AsyncIterator[Connection]:
    made = Connection(port)
    try:
        yield made
    finally:
        made.close()
