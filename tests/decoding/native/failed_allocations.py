"""Program of test_failed_allocations.py: let each allocation of a running batch's thread fail, one after the other.

Usage: LD_PRELOAD=LIBRARY python -m tests.decoding.native.failed_allocations LIBRARY

It prints as JSON for each decoder how often all sentences had their outputs ("outputs"), one had an error ("error"),
and the batch failed ("failure"): where one allocation fails ("once"), and where all later ones fail, too ("on").
"""

import ctypes
import itertools
import json
import sys
from collections import Counter
from typing import Any

from tests.decoding.native.test_continuous_batch import (
    DECODERS,
    admit,
    alone,
    events_until,
    opened,
    sentences,
    tokens_of,
)


def _outcome(call: Any, made: Any, wanted: list[dict[str, Any]], expected: list[Any]) -> str:
    """Decode sentences in a running batch; return "outputs", "error", or "failure" of the batch."""
    try:
        for number, sentence in enumerate(wanted):
            admit(made, number, sentence)
        events = events_until(made, len(wanted))
    except MemoryError:
        return "failure"
    errors = {error for _, _, _, error in events}
    assert errors <= {None, ("std::bad_alloc", False)}, errors
    for number, output, _, error in events:
        assert error is not None or tokens_of(call, output) == expected[number]
    return "outputs" if errors == {None} else "error"


def _failed(ask: Any) -> bool:
    try:
        ask()
    except MemoryError:
        return True
    return False


def main(path: str) -> None:
    library = ctypes.CDLL(path)
    library.fail_no_more.restype = ctypes.c_bool
    found: dict[str, Counter[str]] = {}
    for name, is_lasting in itertools.product(("greedy", "iad", "beams"), (False, True)):
        call = DECODERS[name]()
        wanted = [{**sentence, "min_len": 1, "max_len": 3} for sentence in sentences(call, 2)]
        expected = [tokens_of(call, alone(call, sentence)) for sentence in wanted]
        outcomes = found[f"{name} {'on' if is_lasting else 'once'}"] = Counter()
        for calls in itertools.count():
            library.fail_after(ctypes.c_long(calls), is_lasting)
            made = opened(call, threads=1)
            outcome = _outcome(call, made, wanted, expected)
            has_failed = library.fail_no_more()
            if outcome == "failure":  # for good
                assert _failed(lambda: made.take(0)) and _failed(lambda: admit(made, 9, wanted[0]))  # noqa: B023
            made.close()
            if not has_failed:
                break
            outcomes[outcome] += 1
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
