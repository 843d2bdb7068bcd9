"""Threads of the kernels: equal results with any number, from several Python threads, and after a fork."""

import random
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding.native.model import NativeWeights
from tests.api.test_forks import meanwhile, status_of_fork
from tests.decoding.native.building import CSRC, compiler
from tests.decoding.native.random_models import make_random
from tests.strategies import UNSHRUNK, example_count
from tests.support import (
    Options,
    both_sides,
    ids,
    make_all,
    make_drafter,
    make_generator,
    make_sample,
    make_task,
    scores,
)

WIDE = both_sides(layers=1, embed_dim=512, ffn_embed_dim=1024, attention_heads=8)
BEFORE = both_sides(normalize_before=True)
# No size is a multiple of a vector register.
ODD = both_sides(layers=1, embed_dim=500, ffn_embed_dim=1001, attention_heads=4) | {"activation_fn": "gelu"}
Said = list[tuple[list[int], list[float]]]


@dataclass
class Case:
    """A model in the kernels, and batches for it."""

    generator: Any
    task: Any

    def sample(self, seed: int, batch: int) -> dict[str, Any]:
        choose = random.Random(seed)
        return make_sample(self.task, [choose.randint(0, 9) for _ in range(batch)], seed)

    def run(self, sample: dict[str, Any]) -> Said:
        """Return ids and scores."""
        output = self.generator.generate([], sample)
        return [(tokens, values.tolist()) for tokens, values in zip(ids(output), scores(output), strict=True)]


def make_case(how: Options, vocabulary: int, sizes: dict[str, Any], packed: bool = False, **more: Any) -> Case:
    task = make_task(vocabulary)
    model = make_random(task, 3, **sizes)
    drafter = make_drafter(task, 4, verifier=model, drafter_context="features") if how.spec.name == "gad" else None
    weights = NativeWeights(packed) if not how.int8 else None
    search = {"beam_size": 3} if how.spec.searches_beams else {}
    generator, _ = make_generator([model], task, how, drafter, engine=weights, max_len_b=5, **search, **more)
    assert generator.backend.name == "native"
    return Case(generator, task)


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """Small and wide models, unpacked and packed and int8 weights, both activations, beam search, and drafts."""
    small = {"activation_fn": "gelu"}
    return [
        make_case(Options("greedy"), 67, {}),
        make_case(Options("jacobi"), 1003, WIDE),
        make_case(Options("greedy"), 1003, WIDE, packed=True),
        make_case(Options("greedy", int8=True), 67, small),
        make_case(Options("fast-beam"), 1003, WIDE | BEFORE),
        make_case(Options("greedy", int8=True), 1003, WIDE),
        make_case(Options("iad"), 1003, ODD),
        make_case(Options("gad", 4), 67, small),
    ]


@settings(UNSHRUNK, max_examples=example_count(40))
@given(index=st.integers(0, 7), seed=st.integers(0, 2**20), batch=st.sampled_from([1, 2, 7, 32]))
def test_results_do_not_depend_on_threads(cases: list[Case], index: int, seed: int, batch: int) -> None:
    sample, results = cases[index].sample(seed, batch), []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.append(cases[index].run(sample))
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("is_shared", [False, True])
def test_several_python_threads_at_once(cases: list[Case], is_shared: bool) -> None:
    torch.set_num_threads(2)
    used = [(cases[index], cases[index].sample(batch, batch)) for index in (0, 1, 4, 7) for batch in (1, 7, 32)]
    expected = [case.run(sample) for case, sample in used]

    def is_right(own: int) -> bool:
        chosen = random.Random(own).choices(range(12) if is_shared else range(3 * own, 3 * own + 3), k=25)
        return all(used[index][0].run(used[index][1]) == expected[index] for index in chosen)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(is_right, range(4)))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forks_while_other_threads_decode(cases: list[Case]) -> None:
    """A child has none of its parent's threads, but its locks, perhaps held."""
    torch.set_num_threads(2)
    # Each thread has its own generator.
    own, *others = (make_case(Options("greedy"), 1003, WIDE) for _ in range(3))
    sample = own.sample(0, 7)
    expected = own.run(sample)
    with meanwhile(*(lambda case=case: case.run(sample) for case in others)):
        for _ in range(10):
            assert status_of_fork(lambda: [own.run(sample), own.run(sample)] == [expected] * 2) == 0
        assert own.run(sample) == expected


class Interrupted(Exception):
    """Raised by the signal handler, like KeyboardInterrupt."""


@pytest.mark.parametrize("how", [Options("greedy"), Options("fast-beam")], ids=lambda how: how.spec.name)
@pytest.mark.parametrize("threads", [1, 3])
def test_signals_are_heard_while_a_batch_is_decoded(how: Options, threads: int) -> None:
    torch.set_num_threads(threads)
    task, model, short = make_all(100, 1, [3, 5], ending=False, max_target_positions=1024, **WIDE)
    search = {"beam_size": 3} if how.spec.searches_beams else {}
    generator, _ = make_generator([model], task, how, max_len_b=900, min_len=900, **search)
    long = make_sample(task, [9] * 64)

    def interrupt(*_: Any) -> None:
        raise Interrupted

    generator.backend  # noqa: B018
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        started = time.thread_time()
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Interrupted):
            generator.generate([], long)
        assert time.thread_time() - started < 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    generator.min_len, generator.max_len_b = 1, 8
    assert all(len(tokens) <= 9 for tokens in ids(generator.generate([], short)))


def test_pool_has_no_race(tmp_path: Path) -> None:
    """Run the pool alone under ThreadSanitizer, without Python and PyTorch."""
    program = tmp_path / "pool"
    command = [compiler(), "-std=c++17", "-g1", "-O1", "-pthread", "-fsanitize=thread", f"-I{CSRC}"]
    built = subprocess.run([*command, Path(__file__).with_name("thread_pool.cpp"), "-o", program], capture_output=True)
    if b"tsan" in built.stderr:
        pytest.skip("the compiler has no ThreadSanitizer")
    assert built.returncode == 0, built.stderr.decode()
    ran = subprocess.run([program], capture_output=True, text=True)
    if "unexpected memory mapping" in ran.stderr:
        pytest.skip("ThreadSanitizer does not run here")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "800 calls\n", "")
    # A deliberate race is reported.
    racing = subprocess.run([program, "race"], capture_output=True, text=True)
    assert racing.returncode != 0 and "data race" in racing.stderr
