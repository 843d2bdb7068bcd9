"""Limits of a server."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """Limits and keys of a server.

    Attributes:
        api_keys: of which a request must name one; none for no keys.
        max_characters: of a request's text.
        max_bytes: of a request's body.
        timeout: seconds for a request to arrive (else it is answered 408), and again for its translation (else 504).
        origins: web sites whose pages may use the server from a browser.
    """

    api_keys: frozenset[str] = frozenset()
    max_characters: int = 20_000
    timeout: float = 60.0
    origins: tuple[str, ...] = ()

    @property
    def max_bytes(self) -> int:
        """Most bytes of a request's body: JSON may escape a character in 12 bytes; drafts are as long as the text."""
        return 65_536 + 24 * self.max_characters
