"""The drafter that docs/adding-a-method.md shows, run as it is printed there."""

import re
from pathlib import Path
from typing import Any

import pytest

from fairseq_plugins.decoding.acceptance import exact
from fairseq_plugins.decoding.generator import DraftVerifyGenerator, Method
from fairseq_plugins.decoding.stats import DecodingStats
from fairseq_plugins.decoding.verifier import Verifier
from tests.support import fairseq_greedy, ids, make_sample, make_task, make_transformer

PAGE = Path(__file__).parent.parent / "docs" / "adding-a-method.md"


def echo_drafter(width: int) -> Any:
    """An instance of the class in the page's code block."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    return names["EchoDrafter"](width)


@pytest.mark.parametrize("seed", range(4))
def test_drafter_of_the_page_is_lossless(seed: int) -> None:
    task = make_task(14)
    model = make_transformer(task, seed)
    sample = make_sample(task, [5, 1, 0, 12, 7], seed)
    expected = ids(fairseq_greedy([model], task, sample, max_len_b=30))
    stats = DecodingStats("echo")
    generator = DraftVerifyGenerator(
        [model], task.target_dictionary, lambda: Method(Verifier([model]), echo_drafter(6), exact), stats, max_len_b=30
    )
    assert ids(generator.generate([model], sample)) == expected
    assert stats.tokens == sum(map(len, expected))


def test_drafter_of_the_page_drafts() -> None:
    """This random model repeats itself, so that echoes are accepted: fewer iterations than tokens."""
    task = make_task(10)
    model = make_transformer(task, 5)
    stats = DecodingStats("echo")
    generator = DraftVerifyGenerator(
        [model], task.target_dictionary, lambda: Method(Verifier([model]), echo_drafter(6), exact), stats, max_len_b=30
    )
    generator.generate([model], make_sample(task, [5, 9], 1))
    assert stats.mean_accepted_tokens > 1.5
