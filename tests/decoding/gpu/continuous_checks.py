"""Checks of continuous batches of the GPU engine in Triton's interpreter: sentences have the outputs of alone."""

import random
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from fairseq_plugins.decoding.constraints import Constraints
from fairseq_plugins.decoding.decoded import Decoded, StepOutput
from fairseq_plugins.decoding.gpu import host_loop
from fairseq_plugins.decoding.gpu.backend import GpuBackend
from fairseq_plugins.decoding.kernel_backend import KernelBackend
from fairseq_plugins.decoding.kernel_module import Unsupported
from fairseq_plugins.decoding.native.backend import NativeBackend
from fairseq_plugins.decoding.reference.sampling import Sampling
from tests.decoding.gpu.drafter_checks import DRAFTS, EOS, GAD, PAD, TASK, UNK, accepting
from tests.support import SMALL, Options, make_drafter, make_transformer

MAX_SOURCE, MAX_LEN = 9, 8
LIMITS = Constraints(pad=PAD, unk=UNK, eos=EOS, max_len=MAX_LEN)


def batch_of(how: Options, kind: type, model: nn.Module, drafter: nn.Module | None = None) -> KernelBackend:
    with torch.inference_mode():  # as a generator chooses its backend
        return kind(how.spec, how.options, how.context([model], drafter, TASK))


def opened(backend: KernelBackend, max_sentences: int = 2) -> KernelBackend:
    backend.open(LIMITS, EOS, 1, MAX_SOURCE, max_sentences)
    return backend


def sentence(tokens: list[int], drafts: list[list[int]] | None = None) -> dict[str, Any]:
    return {"net_input": {"src_tokens": torch.tensor([[*tokens, EOS]])}, "drafts": [drafts or []]}


def sentences(count: int, has_prefixes: bool) -> list[tuple[dict[str, Any], Constraints]]:
    """Return sentences with limits of their own."""
    choose, found = random.Random(3), []
    for number in range(count):
        tokens = [choose.randrange(4, 13) for _ in range(choose.choice([1, 3, 8]))]
        longest = choose.choice([0, 3, 5, MAX_LEN])
        prefix = choose.choice([None, None, [[6]], [[PAD, 7]]])  # a draft, which some rules accept
        limits = replace(
            LIMITS,
            min_len=min(longest, choose.choice([1, 4])),
            max_len=longest,
            unk_penalty=2.0 if number in (4, 5) else 0.0,
            prefix=torch.tensor(prefix) if prefix is not None and has_prefixes else None,
        )
        found.append((sentence(tokens, DRAFTS[number % 3]), limits))
    return found


def until(batch: KernelBackend, count: int) -> list[tuple[int, Any]]:
    """Return events until this many sentences have ended."""
    events: list[tuple[int, Any]] = []
    deadline = time.monotonic() + 120
    while sum(not isinstance(result, StepOutput) for _, result in events) < count:
        assert time.monotonic() < deadline, events
        events += batch.take(0.1)
    return events


def same_as_alone(how: Options, model: nn.Module, drafter: nn.Module | None = None, count: int = 6) -> None:
    """Sentences join at different times; the compiled kernels decode each of them alone."""
    wanted = sentences(count, has_prefixes=how.spec.name == "greedy")
    batch, native = opened(batch_of(how, GpuBackend, model, drafter)), batch_of(how, NativeBackend, model, drafter)
    events: list[tuple[int, Any]] = []
    for number, (sample, limits) in enumerate(wanted):
        batch.admit([number], sample, limits, streams=number % 2 == 0)
        if number % 3 == 2:
            events += until(batch, 1)
    ends = sum(isinstance(result, Decoded) for _, result in events)
    events += until(batch, len(wanted) - ends)
    assert batch.generator.load() == (0, 0)
    batch.generator.close()
    ends = {number: result for number, result in events if not isinstance(result, StepOutput)}
    for number, (sample, limits) in enumerate(wanted):
        [[ours]], [[theirs]] = ends[number].outputs, native.decode(sample, limits, EOS).outputs
        assert ours.tokens.tolist() == theirs.tokens.tolist(), number
        torch.testing.assert_close(ours.log_probs, theirs.log_probs, rtol=0, atol=1e-4)
        steps = [result for own, result in events if own == number and isinstance(result, StepOutput)]
        assert [len(step.tokens) for step in steps] == ([] if number % 2 else ends[number].emitted[0])
        assert not steps or [token for step in steps for token in step.tokens] == ours.tokens.tolist()


def check_greedy() -> None:
    """Limits, prefixes and penalties of each sentence."""
    same_as_alone(Options("greedy"), make_transformer(TASK, 1, **SMALL))


def check_drafts() -> None:
    """Drafts that users give, and those of a trained drafter."""
    model = make_transformer(TASK, 1, **SMALL)
    same_as_alone(accepting(2, Options("reuse", 4)), model, count=4)
    drafter = make_drafter(TASK, 10, 3, verifier=model, **SMALL, drafter_context="features")
    same_as_alone(Options("gad", fixed_width=True, **GAD), model, drafter, count=4)


def check_cancelling() -> None:
    """Cancelled sentences have no events, and leave room; a closed batch takes none."""
    batch = opened(batch_of(Options("greedy"), GpuBackend, make_transformer(TASK, 1, **SMALL)))
    endless = replace(LIMITS, min_len=MAX_LEN)
    for number in range(8):
        batch.admit([number], sentence([5, 6]), endless, streams=True)
    assert sum(batch.generator.load()) == 8
    for number in {*range(8)} - {1, 6}:
        batch.generator.cancel(number)
    batch.generator.cancel(99)
    events = until(batch, 2)
    assert {number for number, result in events if isinstance(result, Decoded)} == {1, 6}
    batch.admit([9], sentence([5, 6]), endless)
    [(number, _)] = until(batch, 1)
    assert number == 9 and batch.generator.load() == (0, 0)
    batch.generator.close()
    batch.generator.close()
    with pytest.raises(ValueError, match="closed"):
        batch.admit([10], sentence([5]), endless)


def check_sampling() -> None:
    """Sentences that draw tokens, beside others that do not."""
    model, keys = make_transformer(TASK, 1, **SMALL), torch.tensor([[0, 0, 7, 0], [1, 0, 7, 0]])
    how = Options("greedy")
    batch, native = opened(batch_of(how, GpuBackend, model)), batch_of(how, NativeBackend, model)
    sample, hot = sentence([5, 6, 7]), Sampling(topk=0, topp=0.0, temperature=2.0)
    batch.admit([0], sample, LIMITS)
    batch.admit([1], {**sample, "noise_keys": keys[1:]}, LIMITS, sampling=hot)
    batch.admit([2], {**sample, "noise_keys": keys[:1]}, LIMITS, sampling=replace(hot, topk=3))
    results = dict(until(batch, 3))
    batch.generator.close()
    outputs = [results[number].outputs[0][0].tokens.tolist() for number in range(3)]
    for number, (sampling, key) in enumerate(((None, None), (hot, keys[1]), (replace(hot, topk=3), keys[0]))):
        native.sampling = sampling or Sampling()
        given = sample if key is None else {**sample, "noise_keys": key[None]}
        assert outputs[number] == native.decode(given, LIMITS, EOS).outputs[0][0].tokens.tolist(), number
    assert outputs[0] != outputs[1]


def check_errors() -> None:
    """An error of one sentence harms no other; sentences that do not fit are refused."""
    model = make_transformer(TASK, 1, **SMALL)
    model.encoder.embed_tokens.weight.data[13] = torch.nan
    batch = opened(batch_of(Options("greedy"), GpuBackend, model))
    for number, tokens in enumerate(([5, 6], [5, 13], [7])):
        batch.admit([number], sentence(tokens), LIMITS)
    results = dict(until(batch, 3))
    assert isinstance(results[1], RuntimeError) and "not numbers" in str(results[1])
    assert isinstance(results[0], Decoded) and isinstance(results[2], Decoded)
    for tokens, changes, message in (
        ([], {"max_len": MAX_LEN + 1}, "lengths"),
        ([], {"min_len": 5, "max_len": 4}, "lengths"),
        ([5] * MAX_SOURCE, {}, "more than there is room"),
        ([99], {}, "outside of the vocabulary"),
        ([], {"prefix": torch.tensor([[99]])}, "prefix"),
    ):
        with pytest.raises(ValueError, match=message):
            batch.admit([5], sentence(tokens), replace(LIMITS, **changes))
    batch.generator.close()
    with pytest.raises(Unsupported, match="same beam"):
        opened(batch_of(Options("fast-beam"), GpuBackend, model))


def prepare() -> None:
    """Launch iterations before the end is known."""
    host_loop.AHEAD = 2
