"""Drafting and verifying give exactly the output of fairseq's own generator at beam 1."""

import random
import time
from dataclasses import replace
from functools import cache
from itertools import chain, takewhile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding.reference.drafters import NoDrafter
from fairseq_plugins.decoding.reference.engine import Engine
from tests.decoding.test_accepted_drafts import known as trained
from tests.errors import error_about
from tests.strategies import UNSHRUNK, example_count
from tests.support import (
    Options,
    ScriptedDrafter,
    always_wrong,
    assert_same_output,
    decode,
    fairseq_greedy,
    ids,
    make_all,
    make_drafter,
    make_generator,
    make_sample,
    make_task,
    make_transformer,
)

EOS = 2


@pytest.mark.xdist_group("known")
@pytest.mark.parametrize(
    "how",
    [Options("greedy"), Options("gad", 5, fp32_drafts=True), Options("iad"), Options("gs-jacobi", 4)],
    ids=lambda how: how.spec.name,
)
@pytest.mark.parametrize("active", [0, 5])
def test_steps_report_every_iteration(how: Options, active: int) -> None:
    """In both backends, but that only the loop in PyTorch drafts beyond EOS and the maximum length."""
    batch = trained("random")
    drafter = batch.drafter("features") if how.spec.name == "gad" else None
    outputs, yielded = ids(batch.expected), []
    for engine in (None, Engine()):
        generator, stats = make_generator(
            [batch.model], batch.task, how, drafter, engine=engine, max_len_b=40, active_sentences=active
        )
        steps, steps_of_sentences = generator.steps(batch.sample), []
        try:
            while True:
                steps_of_sentences.append(next(steps))
        except StopIteration as end:
            assert ids(end.value) == outputs
        of_sentences = list(zip(*steps_of_sentences, strict=True))
        for sentence, own in enumerate(of_sentences):
            assert [token for step in own for token in step.tokens] == outputs[sentence]
            assert [len(step.tokens) for step in own if step.tokens] == stats.recorded[sentence].emitted
            assert all(step.accepted <= min(step.drafted, len(step.tokens)) for step in own)
            assert all(step.tokens or not step.drafted for step in own)
            done = 0
            for step in own:
                done += len(step.tokens)
                assert step.finished == (done == len(outputs[sentence]))
        yielded.append([[step for step in own if step.tokens] for own in of_sentences])
    assert (how.spec.name == "greedy") == all(step.drafted == 0 for own in yielded[0] for step in own)
    for kernels, loop in zip(*(chain.from_iterable(steps) for steps in yielded), strict=True):
        assert kernels == replace(loop, drafted=kernels.drafted) and kernels.drafted <= loop.drafted


class Known:
    """A verifier, a batch and fairseq's output for it; with 40 as maximum of several lengths."""

    def __init__(self, max_len: int) -> None:
        self.search = {"max_len_b": max_len, "min_len": min(1, max_len)}
        self.task = make_task(100)
        self.verifier = make_transformer(self.task, 8, share_decoder_input_output_embed=True)
        self.sample = make_sample(self.task, [0, 3, 30, 7, 12, 1, 22])
        self.expected = fairseq_greedy([self.verifier], self.task, self.sample, **self.search)
        self.outputs = ids(self.expected)
        lengths = {len(tokens) for tokens in self.outputs}
        assert max_len < 40 or (len(lengths) >= 4 and min(lengths) < 10 and max(lengths) > 20)


known_outputs = cache(Known)


@settings(UNSHRUNK, max_examples=example_count(120))
@given(
    width=st.integers(1, 25),
    max_len=st.sampled_from([0, 1, 2, 3, 5, 11, 12, 40, 40, 40]),
    most_right=st.sampled_from([0, 1, 7, 99]),
    ends=st.sampled_from([[], [EOS] * 25, [5, 6, EOS, 7] * 7]),
    seed=st.integers(0, 999),
)
def test_drafts_add_right_tokens(width: int, max_len: int, most_right: int, ends: list[int], seed: int) -> None:
    """Each iteration adds the right tokens at the beginning of its draft, up to EOS, and the verifier's own token."""
    known, planned = known_outputs(max_len), {}

    def script(sentence: int, done: int, room: int) -> list[int]:
        generator = random.Random(f"{seed} {sentence} {done}")
        right = known.outputs[sentence][done:][: generator.randint(0, most_right)]
        wrong = always_wrong(known.outputs)(sentence, done + len(right), 1)
        planned[sentence, done] = [*right, *(ends or wrong)][: generator.choice([room, generator.randint(0, room)])]
        return planned[sentence, done]

    drafter = ScriptedDrafter(script, width)
    drafted, stats = decode([known.verifier], known.task, known.sample, drafter, **known.search)
    assert_same_output(drafted, known.expected)
    for sentence, output in enumerate(known.outputs):
        emitted: list[int] = []
        while sum(emitted) < len(output):
            left = output[sum(emitted) :]
            pairs = zip(planned[sentence, sum(emitted)], left, strict=False)
            right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            emitted.append(min(right + 1, len(left)))
        assert stats[sentence].emitted == emitted


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("drafter_positions", [12, 20, 64])
@pytest.mark.parametrize("block_size", [1, 10, 25])
def test_outputs_of_maximum_position(learned: bool, drafter_positions: int, block_size: int) -> None:
    """Blocks exceed the position tables of the verifier and of a drafter with a shorter one."""
    task = make_task(60)
    verifier = make_transformer(task, 1, ending=False, max_target_positions=20, decoder_learned_pos=learned)
    drafter = make_drafter(task, 2, max_target_positions=drafter_positions, decoder_learned_pos=learned)
    sample = make_sample(task, [5, 0, 18])
    expected = fairseq_greedy([verifier], task, sample, max_len_b=200)
    assert max(len(tokens) for tokens in ids(expected)) == 20
    drafted, _ = decode([verifier], task, sample, Options("gad", block_size), drafter, max_len_b=200)
    assert_same_output(drafted, expected)


def test_minimum_length_above_the_maximum_is_refused() -> None:
    known = known_outputs(40)
    with error_about("--min-len"):
        decode([known.verifier], known.task, known.sample, NoDrafter(), min_len=9, max_len_b=3)


@pytest.mark.parametrize("decoder", ["greedy", "iad", "fast-beam"])
@pytest.mark.parametrize("engine", [None, Engine()], ids=["native", "torch"])
def test_an_infinite_penalty_forbids_the_unknown_word(decoder: str, engine: Engine | None) -> None:
    task, model, sample = make_all(12, 1, [5, 9, 0], ending=False)
    search = {"max_len_b": 15, "unk_penalty": float("inf")}
    generator, _ = make_generator([model], task, Options(decoder), engine=engine, **search)
    assert_same_output(generator.generate([model], sample), fairseq_greedy([model], task, sample, **search))


@pytest.mark.parametrize("streams", [False, True])
def test_times_leave_out_the_set_up(streams: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels are built at the first batch; the first sentence's time, and sums, are those of decoding."""
    task = make_task()
    sample = make_sample(task, [5, 3])
    generator, _ = make_generator([make_transformer(task)], task, Options("greedy"))
    choose, recorded = generator.choose, []

    def slow_choice(*what: Any) -> Any:
        monkeypatch.setattr(time, "perf_counter", lambda: 1000 + clock())
        return choose(*what)

    clock = time.perf_counter
    generator.choose, generator.stats.record = slow_choice, lambda batch, seconds: recorded.append(seconds)
    list(generator.steps(sample)) if streams else generator.generate([], sample)
    assert len(recorded) == 1 and recorded[0] < 500
