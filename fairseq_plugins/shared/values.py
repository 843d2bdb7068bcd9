"""Types of command-line values, for argparse; imports nothing slow."""

import argparse
import math


def positive(text: str) -> int:
    """Parse an integer of at least 1, for argparse."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def not_negative(text: str) -> float:
    """Parse a number of at least 0, for argparse."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no number of at least 0")
    return value


def positive_list(text: str) -> list[int]:
    """Parse a comma-separated list of integers of at least 1, for argparse."""
    return [positive(part) for part in text.split(",")]
