"""Around every request: its size, its log line, its metrics, and the client's leaving."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from anyio import BrokenResourceError
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairseq_plugins.api import ServiceClosed
from fairseq_plugins.api.results import CallStatistics
from fairseq_plugins.serving.errors import Gone, RequestError
from fairseq_plugins.serving.metrics import Metrics
from fairseq_plugins.serving.text import Result

logger = logging.getLogger("spec-dec-serve")
T = TypeVar("T")
Answer = Callable[[Request, Exception], ASGIApp]
_KEY = "spec_dec.account"
LATE = "spec_dec.late"
"""Key in the scope of a request that the protocol has answered 408; the application only sees that its client left."""


@dataclass
class Account:
    """What a request did, for its log line: never its text.

    Attributes:
        model: name of the model.
        total: counts of its sentences.
        outcome: set where the status does not say it, such as "client left".
    """

    model: str = "-"
    total: CallStatistics = field(default_factory=CallStatistics)
    outcome: str = ""


def account_of(request: Request) -> Account:
    """Return the account of a request."""
    account: Account = request.scope[_KEY]
    return account


def count(request: Request, results: Iterable[Result]) -> None:
    """Count the sentences of a request."""
    for result in results:
        for _, translation, _ in result.sentences:
            account_of(request).total.add(translation)


class Accounting:
    """ASGI middleware: answers errors, logs a line for each request, and counts it.

    Metrics name these `paths` only. A body may have `max_bytes`.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, answer: Answer, paths: frozenset[str], max_bytes: int) -> None:
        self.app, self.metrics, self.answer, self.paths = app, metrics, answer, paths
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        started = time.perf_counter()
        account = scope[_KEY] = Account()
        status = 0

        async def watched_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = 408 if LATE in scope else message["status"]
            await send(message)

        received = 0

        async def limited_receive() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            self._check_size(received, "at least ")
            return message

        # HEAD is answered as GET; uvicorn leaves the body out.
        handled = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        try:
            length = Headers(scope=scope).get("content-length", "")
            if length.isdecimal():
                self._check_size(int(length))
            try:
                await self.app(handled, limited_receive, watched_send)
            except* BrokenResourceError:  # of a stream of fastapi (its discussion 15725)
                account.outcome = "client left"
        except asyncio.CancelledError:  # by uvicorn, which ends incomplete requests when its time to shut down is over
            account.outcome = "cut off"
            if not status:
                await self.answer(Request(scope), ServiceClosed())(scope, receive, watched_send)
        except Exception as error:
            if status:
                raise
            await self.answer(Request(scope), error)(scope, receive, watched_send)
        finally:
            seconds = time.perf_counter() - started
            path = scope["path"] if scope["path"] in self.paths else "other"
            self.metrics.requests.labels(path, status).inc()
            self.metrics.seconds.labels(path).observe(seconds)
            if account.total.sentences:
                self.metrics.count(account.model, account.total)
            logger.info(_line(scope, status, seconds, account))

    def _check_size(self, size: int, least: str = "") -> None:
        """Raise RequestError for a body with too many bytes; starlette's own limit answers with plain text."""
        if size > self.max_bytes:
            problem = f"the body has {least}{size} bytes, and may have {self.max_bytes}"
            raise RequestError(413, f"{problem}; send less at a time")


def _line(scope: Scope, status: int, seconds: float, account: Account) -> str:
    done = account.total
    client = (scope.get("client") or ("-",))[0]
    path = scope["path"].encode("unicode_escape").decode()[:80]
    line = f"{client} {scope['method']} {path} {status} {1000 * seconds:.1f}ms"
    if done.sentences:
        line += f" model={account.model} sentences={done.sentences} tokens={done.tokens} iterations={done.iterations}"
    return f"{line} {account.outcome}".rstrip()


async def until_gone(request: Request, work: Awaitable[T], timeout: float) -> T:
    """Return the result of `work`; cancel it when the client leaves, or after some seconds.

    Raises Gone if the client has left, and TimeoutError after `timeout` seconds.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({task, watcher}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if watcher.done():
            account_of(request).outcome = "client left"
            raise Gone
        raise TimeoutError
    finally:
        for future in (task, watcher):
            future.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _left(request: Request) -> None:
    while True:
        message: Any = await request.receive()
        if message["type"] == "http.disconnect":
            return
