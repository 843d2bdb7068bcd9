"""Suppressed tokens: the output of fairseq's own search without them, with every decoder, backend and drafts."""

from typing import Any

import pytest
import torch
from fairseq.search import BeamSearch

from fairseq_plugins.decoding.native.model import NativeWeights
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.decoding.reference.sampling import Sampling
from tests.support import Options, decode, fairseq_beam, ids, make_drafter, make_sample, make_task, make_transformer

SIZE = 40
TASK = make_task(SIZE)
MODEL, SAMPLE = make_transformer(TASK, 3), make_sample(TASK, [3, 9, 5, 1, 12])
DICTIONARY = TASK.target_dictionary
DRAFTER = make_drafter(TASK, 5, 4, verifier=MODEL)
BACKENDS = {"torch": lambda: Engine(batch_invariant=True), "native": lambda: NativeWeights(batch_invariant=True)}
LIMITS = {"max_len_b": 10, "min_len": 2, "unk_penalty": 0.5}


def every_other(tokens: list[int]) -> list[int]:
    """Return half of the words among these tokens."""
    return sorted({token for token in tokens if token >= DICTIONARY.nspecial})[::2]


def plain(beam: int = 1, **options: Any) -> list[list[int]]:
    return ids(fairseq_beam([MODEL], TASK, SAMPLE, beam, **LIMITS, **options))


def found(method: str, backend: str, beam: int = 1, **options: Any) -> list[list[int]]:
    drafter = DRAFTER if method.startswith("gad") else None
    output, _ = decode(
        [MODEL], TASK, SAMPLE, Options(method), drafter, engine=BACKENDS[backend](), beam_size=beam, **LIMITS, **options
    )
    return ids(output)


USED = every_other([token for output in plain() for token in output])
FIRST = sorted({output[0] for output in plain()})
WITHOUT = {"tokens_to_suppress": [DICTIONARY[token] for token in USED], "begin_suppressed": tuple(FIRST)}


def assert_none_in(outputs: list[list[int]]) -> None:
    assert not {*USED} & {token for output in outputs for token in output}
    assert not {*FIRST} & {output[0] for output in outputs}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("method, beam", [("greedy", 1), ("gad", 1), ("fast-beam", 3)])
def test_a_prefix_may_have_them(backend: str, method: str, beam: int) -> None:
    first = USED[0]
    prefix = {"prefix_tokens": torch.tensor([[first, 7]] * len(SAMPLE["id"]))}
    given = plain(beam, **prefix)
    following = sorted({output[2] for output in given if output[2] != DICTIONARY.eos()})
    options = {"tokens_to_suppress": [DICTIONARY[first]], "begin_suppressed": tuple(following)}
    for output in found(method, backend, beam, **prefix, **options):
        assert output[:2] == [first, 7] and first not in output[2:] and output[2] not in following
    assert all(output[2] in following for output in found(method, backend, beam, **prefix) if len(output) > 3)


class OtherBeginnings(BeamSearch):
    """fairseq's search, which begins no output with `FIRST`."""

    def step(self, step: int, lprobs: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if step == 0:
            lprobs[..., FIRST] = -torch.inf
        return super().step(step, lprobs, *args, **kwargs)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("beam", [1, 3])
def test_no_output_begins_with_them(backend: str, beam: int) -> None:
    want = plain(beam, search_strategy=OtherBeginnings(DICTIONARY))
    assert not {*FIRST} & {output[0] for output in want} and {*FIRST} & {token for one in want for token in one[1:]}
    for method in ("greedy", "gad", "gs-jacobi") if beam == 1 else ("fast-beam",):
        assert found(method, backend, beam, begin_suppressed=tuple(FIRST)) == want, method


def test_relaxed_acceptance_accepts_none() -> None:
    for backend in BACKENDS:
        assert_none_in(found("gad++", backend, **WITHOUT))


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(topk=3), Sampling(topp=0.7)], ids=str)
def test_samples_have_none(sampling: Sampling) -> None:
    options = {**WITHOUT, "sampling": sampling, "seed": 5}
    samples = [found(method, backend, **options) for backend in BACKENDS for method in ("greedy", "gad", "gs-jacobi")]
    assert all(other == samples[0] for other in samples)
    assert_none_in(samples[0])
    assert samples[0] != found("greedy", "torch", sampling=sampling, seed=5)


def test_a_suppressed_end_is_forced_at_the_maximum() -> None:
    end = DICTIONARY.eos()
    for backend in BACKENDS:
        for method, beam in (("greedy", 1), ("gad", 1), ("fast-beam", 3)):
            tokens = found(method, backend, beam, tokens_to_suppress=[DICTIONARY[end]])
            assert all(len(output) == 11 and output.index(end) == 10 for output in tokens)
