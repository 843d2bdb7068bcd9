"""HTTP/1.1 of uvicorn, with a bound on the time in which a request arrives: uvicorn waits for ever."""

import asyncio
import json
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from fairseq_plugins.serving.requests import LATE


def bounded_protocol(seconds: float) -> type[H11Protocol]:
    """Return a protocol that ends connections whose next request, headers and body, takes too many seconds to arrive.

    The seconds begin with the request's first byte; a connection may wait as long for that byte. A request without the
    whole of its body is answered 408.
    """

    class BoundedProtocol(H11Protocol):
        _limit: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._unwatch()

        def data_received(self, data: bytes) -> None:
            if self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
                self._unwatch()  # these are the first bytes of a request
            super().data_received(data)

        def handle_events(self) -> None:  # after more bytes, or after an answer, for the request that follows
            super().handle_events()
            self._watch()

        def _watch(self) -> None:
            if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
                self._unwatch()
            elif self._limit is None:
                self._limit = self.loop.call_later(seconds, self._end)

        def _unwatch(self) -> None:
            if self._limit is not None:
                self._limit.cancel()
                self._limit = None

        def _end(self) -> None:
            if self.conn.our_state is h11.SEND_RESPONSE:
                cast(dict[str, Any], self.scope)[LATE] = True
                body = json.dumps({"error": f"the request did not come whole within {seconds:g} s"}).encode()
                headers = [("Content-Type", "application/json"), ("Connection", "close")]
                answer = h11.Response(status_code=408, headers=headers, reason=STATUS_PHRASES[408])
                for event in (answer, h11.Data(body), h11.EndOfMessage()):
                    self.transport.write(self.conn.send(event))
            self.transport.close()

    return BoundedProtocol
