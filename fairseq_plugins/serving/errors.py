"""Errors of requests, and the status of their answers."""

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from fairseq_plugins.api import ServiceClosed, ServiceFull
from fairseq_plugins.errors import ConfigurationError, in_python


class Gone(Exception):
    """The client has left."""


class RequestError(HTTPException):
    """A request that is refused: status, message, and seconds after which to try again."""

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        headers = None if retry_after is None else {"Retry-After": str(retry_after)}
        # Halves of characters, which a request may have in JSON, have no bytes in UTF-8.
        super().__init__(status, message.encode(errors="backslashreplace").decode(), headers)


def as_request_error(error: BaseException) -> RequestError:
    """Return the answer to an error; unknown ones are 500 and say nothing of the text."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, ServiceFull):
        return RequestError(503, "the server is busy; try again later", retry_after=1)
    if isinstance(error, ServiceClosed):
        return RequestError(503, "the server is shutting down", retry_after=5)
    if isinstance(error, ConfigurationError):
        return RequestError(400, error.spelled(in_python))
    if isinstance(error, TimeoutError):
        return RequestError(504, "the translation takes too long; send less text at a time")
    if isinstance(error, (Gone, ClientDisconnect)):
        return RequestError(499, "the client has left")
    return RequestError(500, "internal error; the server's log has its place")
