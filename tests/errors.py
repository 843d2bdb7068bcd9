"""Expect errors by what they are about."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fairseq_plugins.errors import ConfigurationError, on_command_line


@contextmanager
def refused(words: str) -> Iterator[None]:
    """Expect a ConfigurationError inside, in whose line on the command line this regular expression is found."""
    with pytest.raises(ConfigurationError) as caught:
        yield
    line = caught.value.spelled(on_command_line)
    assert re.search(words, line), line


@contextmanager
def error_about(option: object, words: str = "") -> Iterator[None]:
    """Expect a ConfigurationError about an option, or without one about a file, as `refused`."""
    with refused(words), pytest.raises(ConfigurationError) as caught:
        yield
    error = caught.value
    assert option == (error.value if error.option is None else error.option), error
    raise error
