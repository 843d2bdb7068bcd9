"""Load a server and check every answer: `python -m tests.load FOLDER TEXT`.

    python -m tests.load checkpoints/multi30k-base.en-de captions.en speed
    python -m tests.load checkpoints/multi30k.en-de captions.en check --requests 10000 --faults

`check`: clients send requests of mixed lengths and options, with --faults among clients that leave, read slowly, and
send what is malformed or too large. Every text must be that of `translate` alone, and the server's memory flat.
`speed`: requests and sentences per second from many clients, beside calls of `translate`, and latency at half of that
rate over that of an idle server.
A server is a process of its own. It is started here, at 127.0.0.1, and ends with the program.
"""

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import fairseq_plugins
from fairseq_plugins.api import Model
from fairseq_plugins.api.loading import with_decoder
from tests.serving.running import request
from tests.serving.test_cli import free_port

# Seconds after which a server may close a connection.
_KEPT_ALIVE = 3
# Requests a second of a server that is idle: most find it, and its processors, asleep.
IDLE_RATE = 5.0
OPTIONS: list[dict[str, Any]] = [
    {},
    {},
    {"beam": 5},
    {"max_len_b": 6},
    {"unkpen": 2.0},
    {"beam": 5, "num_hypotheses": 2},
    {"temperature": 0.5, "unkpen": 1.0},
    {"sampling": True, "seed": 4, "num_hypotheses": 2},
    {"sampling": True, "sampling_topp": 0.9, "temperature": 1.5},
]
FAULTS = ("leaves", "leaves a stream", "reads slowly", "malformed", "too large", "wrong language")


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
        self.streams[1].write(request(path, data))
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


@dataclass
class Expected:
    """Translations of `translate` alone, kept for sentences that come again."""

    model: Model
    beams: Model
    known: dict[tuple[str, str, int], list[str]] = field(default_factory=dict)

    def of(self, sentence: str, options: dict[str, Any], place: int) -> list[str]:
        """Return the translation and its alternatives; `place` is the sentence's in its request."""
        place = place if "sampling" in options else 0
        key = sentence, json.dumps(options, sort_keys=True), place
        if key not in self.known:
            model = self.beams if options.get("beam", 1) > 1 else self.model
            (best,) = model.translate_batch([model.tokenize(sentence)], numbers=[place], **options)
            self.known[key] = [best.text, *(other.text for other in best.alternatives)]
        return self.known[key]


def requests(sentences: Sequence[str], count: int, seed: int) -> list[tuple[list[str], dict[str, Any]]]:
    """Return sentences and options of requests, of one to twelve sentences."""
    choose = random.Random(seed)
    sizes = [1, 1, 1, 2, 3, 5, 12]
    return [(choose.choices(sentences, k=choose.choice(sizes)), choose.choice(OPTIONS)) for _ in range(count)]


async def check(server: Server, expected: Expected, work: list[Any], clients: int, has_faults: bool) -> Counter[str]:
    """Send requests from clients, each one after the other; count what came back."""
    counts: Counter[str] = Counter()
    waiting = iter(enumerate(work))

    async def client(number: int) -> None:
        choose = random.Random(number)
        async with connection(server.port) as own:
            for _, (sentences, options) in waiting:
                asked = {"text": sentences, "target": "de", "options": options, "split": False}
                if has_faults and choose.random() < 0.1:
                    kind = choose.choice(FAULTS)
                    counts[f"fault: {kind}: {await fault(server.port, kind, asked, choose)}"] += 1
                for _ in range(600):
                    status, answer = await own.ask("/v1/translate", asked)
                    if status != 503:
                        break
                    counts["503, sent again"] += 1
                    await asyncio.sleep(0.2)
                counts["answers"] += 1
                counts["right" if status == 200 and is_right(answer, sentences, options) else f"wrong {status}"] += 1
                counts["sentences"] += len(sentences)
                if counts["answers"] % (len(work) // 8) == 0:
                    print(f"{counts['answers']:6} answers, memory {server.memory():.0f} MiB", flush=True)

    def is_right(answer: Any, sentences: list[str], options: dict[str, Any]) -> bool:
        found = [one["sentences"][0] for one in answer["translations"]]
        texts = [[one["text"], *(other["text"] for other in one["alternatives"])] for one in found]
        sources = [one["source"] for one in found]
        wanted = [expected.of(sentence, options, place) for place, sentence in enumerate(sentences)]
        return sources == sentences and texts == wanted

    await asyncio.gather(*map(client, range(clients)))
    return counts


async def fault(port: int, kind: str, asked: dict[str, Any], choose: random.Random) -> str:
    """Do what a server must bear; return what came back."""
    async with connection(port) as own:
        if kind.startswith("leaves"):
            await own.send("/v1/stream" if "stream" in kind else "/v1/translate", asked)
            await asyncio.sleep(choose.random() * 0.02)
            return "gone"
        if kind == "reads slowly":
            reader, _ = await own.send("/v1/stream", {**asked, "options": {}})
            await asyncio.sleep(0.5)
            text = (await reader.read(10**6)).decode()
            return text.split()[1]
        bodies = {"malformed": b'{"text": [', "too large": b"x" * 10**6, "wrong language": {**asked, "target": "xx"}}
        try:
            status, _ = await own.ask("/v1/translate", bodies[kind])
        except (OSError, asyncio.IncompleteReadError, IndexError):
            return "closed"
        return str(status)


async def closed_loop(port: int, bodies: Sequence[Any], clients: int) -> float:
    """Return the seconds of all requests, from clients that send one after the other."""
    waiting = iter(bodies)

    async def client() -> None:
        async with connection(port) as own:
            for body in waiting:
                status, _ = await own.ask("/translate", body)
                assert status == 200

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return time.perf_counter() - started


async def open_loop(port: int, bodies: Sequence[Any], rate: float) -> list[float]:
    """Return the seconds of requests that arrive at a rate, whether others have ended or not."""
    choose = random.Random(1)
    idle: list[Connection] = []
    seconds: list[float] = []

    async def one(body: Any) -> None:
        own = idle.pop() if idle else Connection(port)
        started = time.perf_counter()
        status, _ = await own.ask("/translate", body)
        assert status == 200
        seconds.append(time.perf_counter() - started)
        idle.append(own)

    tasks = []
    due = time.perf_counter()
    for body in bodies:
        due += choose.expovariate(rate)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.ensure_future(one(body)))
    await asyncio.gather(*tasks)
    for own in idle:
        own.close()
    return seconds


def speed(server: Server, model: Model, texts: Sequence[str], clients: int, rounds: int, size: int) -> None:
    """Print throughput and latency; requests have `size` sentences."""
    groups = [list(texts[start : start + size]) for start in range(0, len(texts), size)]
    bodies = [{"q": group, "source": "en", "target": "de"} for group in groups]

    def fixed(batch_size: int) -> float:
        started = time.perf_counter()
        for start in range(0, len(texts), batch_size):
            model.translate(texts[start : start + batch_size])
        return len(texts) / (time.perf_counter() - started)

    def served(clients: int) -> float:
        return len(texts) / asyncio.run(closed_loop(server.port, bodies, clients))

    fixed(32), served(clients)
    table = [(fixed(32), served(clients), served(1), fixed(size)) for _ in range(rounds)]

    def median(of: Callable[[Any], float]) -> float:
        return statistics.median(map(of, table))

    through = median(lambda row: row[1])
    print(f"translate, batches of 32      {median(lambda row: row[0]):8.1f} sentences/s")
    print(f"{clients} clients, {size} a request   {through:8.1f} sentences/s")
    ratio, serial = median(lambda row: row[1] / row[0]), median(lambda row: row[1] / row[2])
    print(f"that over batches of 32: {ratio:.2f}, over one request after another: {serial:.2f}")
    alone = median(lambda row: row[0] / row[3])
    print(f"batches of 32 over calls of `translate` with {size}, without a server: {alone:.2f}")
    part = bodies[::4]  # also of the loaded server: requests differ much in length
    idle = of_requests(asyncio.run(open_loop(server.port, part, IDLE_RATE)))
    loads = [of_requests(asyncio.run(open_loop(server.port, part, through / size / 2))) for _ in range(4 * rounds)]
    for place, name in enumerate(("p50", "p95")):
        # Another program may disturb one of them.
        half, least = statistics.median(load[place] for load in loads), idle[place]
        print(f"{name}: idle {1000 * least:.1f} ms, half load {1000 * half:.1f} ms: {half / least:.2f} times")


def of_requests(seconds: Sequence[float]) -> tuple[float, float]:
    """Return p50 and p95."""
    ordered = sorted(seconds)
    return ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.95)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", help="of a model")
    parser.add_argument("text", help="a sentence a line")
    parser.add_argument("what", choices=["check", "speed"])
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--sentences", type=int, default=400, help="of the text")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="of speed")
    parser.add_argument("--size", type=int, default=1, help="sentences of a request, for speed")
    parser.add_argument("--faults", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    texts = Path(args.text).read_text(encoding="utf-8").splitlines()[: args.sentences]
    long = ["--timeout", "600"] if args.what == "check" else []
    server = Server(args.folder, args.threads, arguments=long)
    try:
        print(f"first answer after {server.start():.2f} s", flush=True)
        model = fairseq_plugins.load(args.folder, device="cpu", threads=args.threads)
        if args.what == "speed":
            speed(server, model, texts, args.clients, args.rounds, args.size)
            return
        expected = Expected(model, with_decoder(model, "fast-beam"))
        work = requests(texts, args.requests, seed=1)
        for sentences, options in work:
            for place, sentence in enumerate(sentences):
                expected.of(sentence, options, place)
        started = time.perf_counter()
        counts = asyncio.run(check(server, expected, work, args.clients, args.faults))
        for name, count in sorted(counts.items()):
            print(f"{count:8} {name}")
        print(f"{time.perf_counter() - started:.0f} s; memory {server.memory():.0f} MiB")
        server.close()
        print(f"kill -9, and started again: first answer after {server.start():.2f} s")
        if counts["right"] != len(work):
            raise SystemExit("some answers are wrong")
    finally:
        server.close()


if __name__ == "__main__":
    main()
