"""`--no-repeat-ngram-size`: every decoder gives what fairseq's search gives with a blocker that works."""

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from fairseq.ngram_repeat_block import NGramRepeatBlock

from fairseq_plugins.decoding.constraints import forbid_repetition
from fairseq_plugins.decoding.reference.engine import Engine
from tests.errors import error_about
from tests.support import (
    Options,
    all_ids,
    assert_same_hypotheses,
    decode,
    fairseq_beam,
    make_all,
    make_drafter,
    make_generator,
    make_task,
    make_transformer,
)


def _forward(self: NGramRepeatBlock, tokens: Any, log_probs: Any, sentences: int, beam: int, step: int) -> Any:
    size = self.no_repeat_ngram_size
    for row, output in enumerate(tokens[:, : step + 1].tolist()):
        again = [
            output[end]
            for end in range(size - 1, len(output))
            if output[end - size + 1 : end] == output[len(output) - size + 1 :]
        ]
        log_probs[row, again] = -torch.inf
    return log_probs


@contextmanager
def working_blocker() -> Iterator[None]:
    """With fairseq's search as its CUDA extension makes it."""
    with mock.patch.object(NGramRepeatBlock, "forward", _forward):
        yield


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    ("decoder", "beam"),
    [("greedy", 1), ("jacobi", 1), ("gs-jacobi", 1), ("iad", 1), ("fast-beam", 1), ("fast-beam", 4)],
)
def test_output_is_that_of_a_working_blocker(decoder: str, beam: int, size: int) -> None:
    task, model, sample = make_all(12, 1, [5, 9, 0, 3, 3, 14], ending=False)
    options = {"max_len_b": 20, "no_repeat_ngram_size": size}
    with working_blocker():
        expected = fairseq_beam([model], task, sample, beam, **options)
    assert all_ids(expected) != all_ids(fairseq_beam([model], task, sample, beam, max_len_b=20))
    for active in (0, 3):
        more = {**options, "beam_size": beam, "active_sentences": active}
        assert_same_hypotheses(decode([model], task, sample, Options(decoder), **more)[0], expected)
        assert_same_hypotheses(decode([model], task, sample, Options(decoder), engine=Engine(), **more)[0], expected)


def test_the_kernels_are_not_chosen() -> None:
    task = make_task(12)
    generator, _ = make_generator([make_transformer(task)], task, Options("greedy"), no_repeat_ngram_size=3)
    assert (generator.backend.name, generator.backend.reason) == ("torch", "--no-repeat-ngram-size")


def test_single_tokens_and_short_outputs() -> None:
    log_probs = torch.zeros(2, 2, 6)
    forbid_repetition(log_probs, torch.tensor([[2, 4, 5], [2, 5, 0]]), torch.tensor([1, 0]), 1)
    assert log_probs.isinf().nonzero().tolist() == [
        *([0, 0, 2], [0, 0, 4], [0, 1, 2], [0, 1, 4], [0, 1, 5]),
        *([1, 0, 2], [1, 1, 2], [1, 1, 5]),
    ]
    log_probs = torch.zeros(1, 1, 6)
    forbid_repetition(log_probs, torch.tensor([[2, 4]]), torch.tensor([1]), 3)
    assert not log_probs.isinf().any()


def test_fairseqs_own_search_warns_and_a_drafter_alone_refuses(caplog: pytest.LogCaptureFixture) -> None:
    task = make_task()
    models = [make_transformer(task)]
    task.build_generator(models, Namespace(no_repeat_ngram_size=3))
    assert "--no-repeat-ngram-size: forbids nothing in fairseq 0.12's own search" in caplog.text
    task = make_task(decoding_method="nat")
    with error_about("--no-repeat-ngram-size", "is not for --decoder nat"):
        task.build_generator([make_drafter(task)], Namespace(no_repeat_ngram_size=3))


def test_a_size_of_one_is_refused() -> None:
    task = make_task(12, decoding_method="greedy")
    with error_about("--no-repeat-ngram-size", "forbids the end of the sentence"):
        task.build_generator([make_transformer(task, 1)], Namespace(no_repeat_ngram_size=1))
