"""The process of a server: uvicorn, which finishes running requests after a signal, for a bounded time."""

import logging
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from socket import socket
from types import FrameType

import uvicorn

from fairseq_plugins.serving.app import make_app
from fairseq_plugins.serving.models import ServedModel
from fairseq_plugins.serving.protocol import bounded_protocol
from fairseq_plugins.serving.settings import Settings

logger = logging.getLogger("spec-dec-serve")
# Seconds to send the last answers.
_TO_ANSWER = 3


class Process(uvicorn.Server):
    """Serves models until a signal, or until none of them could be loaded: then `run` returns.

    Args:
        models: to serve; they load in the background.
        settings: limits and keys.
        host, port: where to listen; port 0 for a free one.
        grace: seconds that running requests have after a signal; then they are answered 503.
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        settings: Settings,
        host: str = "127.0.0.1",
        port: int = 0,
        grace: float = 30,
    ) -> None:
        self._models, self._grace = list(models), grace
        config = uvicorn.Config(
            make_app(self._models, settings),
            host=host,
            port=port,
            # h11 refuses headers of more than 64 KiB, which httptools collects without end.
            http=bounded_protocol(settings.timeout),
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=round(grace) + _TO_ANSWER,
        )
        super().__init__(config)

    @property
    def has_no_model(self) -> bool:
        """Whether none of the models can be loaded."""
        return all(model.state == "broken" for model in self._models)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End after running requests; at a second Ctrl+C answer them 503 at once, at a third one end at once."""
        if sig == signal.SIGINT and self._captured_signals.count(sig) == 1:
            self._captured_signals.append(sig)
            threading.Thread(target=self._close).start()
        else:
            super().handle_exit(sig, frame)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Let SIGUSR1, which Slurm sends before a time limit, end the server as SIGTERM does."""
        with super().capture_signals():  # raises the signals that it has handled again
            is_main = threading.current_thread() is threading.main_thread()
            before = signal.signal(signal.SIGUSR1, self.handle_exit) if is_main else None
            try:
                yield
            finally:
                if is_main:
                    signal.signal(signal.SIGUSR1, before)

    async def on_tick(self, counter: int) -> bool:
        """Return whether to end: after a signal, or without a model that could ever translate."""
        return await super().on_tick(counter) or self.has_no_model

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Accept no more connections, and wait for the running requests."""
        timer = threading.Timer(self._grace, self._close)
        timer.start()
        await super().shutdown(sockets)
        timer.cancel()

    def _close(self) -> None:
        for model in self._models:
            if model.sentences:
                logger.warning(f"model {model.name}: {model.sentences} sentences are dropped")
            model.close()
