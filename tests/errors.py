"""Expect errors by what they are about."""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from fairseq_plugins.errors import ConfigurationError, on_command_line


@contextmanager
def refused(words: str, option: object = None) -> Iterator[None]:
    """Expect a ConfigurationError inside, in whose line on the command line this regular expression is found.

    `option` is the error's option, or for an error without one its file; None for any.
    """
    with pytest.raises(ConfigurationError) as caught:
        yield
    error = caught.value
    line = error.spelled(on_command_line)
    assert re.search(words, line), line
    assert option in (None, error.value if error.option is None else error.option), line


def error_about(option: object, words: str = "") -> AbstractContextManager[None]:
    """Expect a ConfigurationError about an option, as `refused`."""
    return refused(words, option)
