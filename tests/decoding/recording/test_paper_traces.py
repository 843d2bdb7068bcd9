"""Worked examples of the papers through the real loop: the blocks are as printed.

The verifier is scripted to give the paper's output; the tests check drafts and ends of blocks.
"""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding.methods.iad import source_copy_drafter
from fairseq_plugins.decoding.reference.drafters.heads import BlockwiseDrafter
from fairseq_plugins.decoding.reference.drafters.jacobi import JacobiDrafter
from tests.decoding.methods.without_model import blocks_of
from tests.strategies import DETERMINISTIC, example_count
from tests.support import SpecDecTask, make_task


def numbered(*texts: list[str]) -> tuple[SpecDecTask, list[list[int]]]:
    """Return a task with the words of these texts, and the texts as ids with EOS."""
    task = make_task(4)
    eos = task.target_dictionary.eos()
    return task, [[*(task.target_dictionary.add_symbol(word) for word in text), eos] for text in texts]


# Aggressive Decoding, Table 2: the input, and the output with a bar at the end of every block.
TABLE_2 = [
    (
        "Personally , I think surveillance technology such as RFID (radio-frequency identification) should not be used "
        "to track people , for the benefit it brings to me can not match the concerns it causes .",
        "Personally , I think surveillance technology such as RFID (radio-frequency identification) should not be used "
        "to track people , for the benefit it brings to me can not match the concerns it causes .",
    ),
    (
        "Nowadays , people use the all-purpose smart phone for communicating .",
        "Nowadays , people use the all-purpose smart phone for communicating .",
    ),
    (
        "Because that the birth rate is reduced while the death rate is also reduced , the percentage of the elderly "
        "is increased while that of the youth is decreased .",
        "Because the | birth | rate is reduced while the death rate is also reduced , the percentage of the elderly is "
        "increased while that of the youth is decreased .",
    ),
    (
        "More importantly , they can share their ideas of how to keep healthy through Internet , to make more "
        "interested people get involve and find ways to make life longer and more wonderful .",
        "More importantly , they can share their ideas of how to keep healthy through the | Internet | , to make more "
        "interested people get involved | and | find | ways to make life longer and more wonderful .",
    ),
    (
        "As a result , people have more time to enjoy advantage of modern life .",
        "As a result , people have more time to enjoy the | advantages | of | modern life .",
    ),
    (
        "Nowadays , technology is more advance than the past time .",
        "Nowadays , technology is more advanced | than | in | the | past .",
    ),
    (
        "People are able to predicate some disasters like the earth quake and do the prevention beforehand .",
        "People are able to predict | disasters | like the earthquake | and | prevent | them | beforehand | .",
    ),
]


@pytest.mark.parametrize(("text", "printed"), TABLE_2, ids=[printed[:20] for _, printed in TABLE_2])
def test_input_guided_decoding_table_2(text: str, printed: str) -> None:
    blocks = [len(block.split()) for block in printed.split("|")]
    task, (source, output) = numbered(text.split(), printed.replace("|", "").split())
    gained = blocks_of(source_copy_drafter(task.target_dictionary.pad()), source, output, task=task)
    # The paper prints no EOS. It comes with the last block, or after a bifurcation there in an iteration of its own.
    if len(gained) > len(blocks):
        assert gained.pop() == 1 and printed.endswith("past .")
    else:
        gained[-1] -= 1
    assert gained == blocks


# Stern et al. 2018, section 7.4: the steps of a model with k = 10.
SECTION_7_4 = """
Das_ James_ Web b_ Space_ Tele sko p_ (_ J
W ST_ )_ wird_ bis_
späte stens_ 2018_ an_
Bord_ einer_ Ari ane 5_ -_ Rak ete_ in_ den_
Weltraum _
gestartet_ ._ <EOS>
"""


class ScriptedHeads:
    """Heads 2 to k: right up to the end of the printed block that starts at the next position, then wrong."""

    def __init__(self, blocks: list[int], output: list[int], wrong: int) -> None:
        self.proposals: dict[int, list[int]] = {}
        begin = 0
        for size in blocks:
            self.proposals[begin] = output[begin + 1 : begin + size] + [wrong] * 10
            begin += size
        self.size = max(*output, wrong) + 1

    def head_states(self, hidden: torch.Tensor, first: int, last: int) -> torch.Tensor:
        """Return the ids [1, last - first + 1, 1] proposed by the heads after position [1, 1] of head 1."""
        proposals = self.proposals.get(int(hidden[0, 0]), [self.size - 1] * 10)
        return torch.tensor(proposals[: last - first + 1])[None, :, None]

    def project(self, states: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(states[..., 0], self.size)


def test_blockwise_section_7_4() -> None:
    lines = [line.split() for line in SECTION_7_4.strip().splitlines()]
    blocks = [len(line) for line in lines]
    task, (output, wrong) = numbered([word for line in lines for word in line][:-1], ["wrong"])
    model: Any = type("Model", (), {"decoder": ScriptedHeads(blocks, output, wrong[0])})
    gained = blocks_of(BlockwiseDrafter(model, 10), output, output, task=task)
    # Section 4 merges a verification with the next prediction: the first call only predicts, and every call's own
    # token, which is head 1's, begins the block that the next call verifies. m tokens in the paper's steps + 1 calls.
    assert blocks == [10, 5, 4, 10, 2, 3]
    assert gained == [1, *blocks[:-1], blocks[-1] - 1]


# Santilli et al. 2023, Proposition 1

JACOBI_SETTINGS = [
    {"block_size": None, "length": None},
    {"block_size": 5, "length": None},
    {"block_size": 3, "length": 7},
]


@pytest.mark.parametrize("settings", JACOBI_SETTINGS, ids=str)
def test_jacobi_in_the_worst_case_takes_an_iteration_per_token(settings: dict[str, Any]) -> None:
    """A verifier that is right only after a right prefix, and otherwise wrong in a new way in every iteration."""
    task = make_task(100)
    output = [*range(10, 26), 2]
    turn = iter(range(10**6))

    def wish(position: int, right: bool) -> int:
        return output[min(position, len(output) - 1)] if right else 30 + next(turn) % 70

    drafter = JacobiDrafter(1, initial=task.target_dictionary.pad(), **settings)
    assert blocks_of(drafter, [*range(50, 66), 2], output, wish, task) == [1] * len(output)


def test_jacobi_blocks() -> None:
    # A verifier that ignores its input converges one iteration later than with a right first guess.
    source, output = [5] * 5 + [2], [10, 11, 12, 13, 14, 2]
    assert blocks_of(JacobiDrafter(1, None, None, 1), source, output) == [1, 5]
    assert blocks_of(JacobiDrafter(1, 3, None, 1), source, output) == [1, 2, 1, 2]
    assert blocks_of(JacobiDrafter(1, 3, 3, 1), source, output) == [1, 2, 1, 1, 1]
    assert blocks_of(JacobiDrafter(1, 1, None, 1), source, output) == [1] * 6
    assert blocks_of(JacobiDrafter(1, None, None, None), output, output) == [6]


@settings(DETERMINISTIC, max_examples=example_count(60))
@given(
    output=st.lists(st.integers(4, 9), min_size=1, max_size=20),
    choice=st.sampled_from(JACOBI_SETTINGS),
    initial=st.sampled_from([1, 3, 5, None]),
    noise=st.randoms(use_true_random=False),
)
def test_jacobi_never_takes_more_iterations_than_tokens(
    output: list[int], choice: dict[str, Any], initial: int | None, noise: Any
) -> None:
    """m iterations are enough for any verifier and any first guess."""
    task = make_task(10)
    output = [*output, 2]

    def wish(position: int, right: bool) -> int:
        return output[position] if right and position < len(output) else noise.randint(2, 9)

    gained = blocks_of(JacobiDrafter(1, initial=initial, **choice), [4, 5, 6, 2], output, wish, task)
    assert len(gained) <= len(output)
