"""Expect errors by the option that they are about."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fairseq_plugins.errors import ConfigurationError, on_command_line


@contextmanager
def error_about(option: object, words: str = "") -> Iterator[None]:
    """Expect a ConfigurationError inside.

    Args:
        option: the error's option, or for an error without one its value.
        words: regular expression, found in the problem and the remedy, with options as on the command line.
    """
    with pytest.raises(ConfigurationError) as caught:
        yield
    error = caught.value
    assert option == (error.value if error.option is None else error.option), error
    line = ConfigurationError(None, None, error.problem, error.remedy).spelled(on_command_line)
    assert re.search(words, line), line
