"""The kernels' threads: the same numbers with one as with several, from several Python threads, and after a fork."""

import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fairseq_plugins.decoding.engine.native.kernels import Kernels
from fairseq_plugins.decoding.engine.native.layers import Prediction
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fairseq_plugins.decoding.constraints import Constraints
from fairseq_plugins.decoding.engine.native import build
from tests.decoding.engine.random_steps import (
    EOS,
    PAD,
    UNK,
    Sizes,
    Step,
    random_ends,
    random_layers,
    random_linear,
    random_step,
)
from tests.strategies import STEADY, some

SMALL = Sizes(layers=2, heads=2, width=24, wide=70, vocabulary=67)
WIDE = Sizes(layers=1, heads=8, width=512, wide=1024, vocabulary=1003)
pytestmark = pytest.mark.skipif(build.library() is None, reason="no C++ compiler")


_DRAWING = threading.Lock()


class Decoder:
    """A random decoder on the kernels, and what it is to predict."""

    def __init__(self, sizes: Sizes, copies: bool = False) -> None:
        torch.manual_seed(sizes.width)
        self.sizes = sizes
        self.kernels = Kernels.build(copies)
        self.layers = self.kernels.layers(random_layers(sizes), ends=random_ends(sizes))
        projection = self.kernels.compiled_linear(random_linear(sizes.width, sizes.vocabulary))
        limits = self.kernels.limits(sizes.vocabulary, Constraints(PAD, UNK, EOS, max_len=60))
        self.prediction = Prediction(projection, limits)

    def step(self, seed: int, batch: int, width: int, packed: bool = False) -> Step:
        """A random step."""
        # Random numbers come from one generator, whoever draws them.
        with _DRAWING:
            torch.manual_seed(seed)
            return random_step(self.sizes, random.Random(seed), batch, width, packed)

    def run(self, step: Step) -> list[Tensor]:
        """All that a step writes."""
        cache = step.cache.clone()
        x, states, predicted = self.layers.step(
            *(step.tokens, step.layout, cache, step.cross, step.cross_allowed),
            keep_states=True,
            prediction=self.prediction,
        )
        return [x, states, cache, predicted.scores, predicted.best, predicted.log_probs]


def _same(some: list[Tensor], others: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


@pytest.fixture(scope="module")
def decoders() -> list[Decoder]:
    """Small and wide, weights as they are and in panels, one and the other activation, and int8."""
    small, wide = vars(SMALL), vars(WIDE)
    return [
        Decoder(SMALL),
        Decoder(WIDE),
        Decoder(WIDE, copies=True),
        Decoder(Sizes(**{**small, "gelu": True, "int8": True})),
        Decoder(Sizes(**{**wide, "gelu": True, "normalize_before": True})),
        Decoder(Sizes(**{**wide, "int8": True})),
        # No head, layer or vocabulary fills whole registers.
        Decoder(Sizes(**{**wide, "heads": 4, "width": 500, "wide": 1001, "gelu": True})),
    ]


@settings(STEADY, max_examples=some(40))
@given(
    index=st.integers(0, 6),
    seed=st.integers(0, 2**20),
    batch=st.sampled_from([1, 2, 7, 32]),
    width=st.integers(1, 6),
    packed=st.booleans(),
)
def test_results_do_not_depend_on_threads(
    decoders: list[Decoder], index: int, seed: int, batch: int, width: int, packed: bool
) -> None:
    step, results = decoders[index].step(seed, batch, width, packed), []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.append(decoders[index].run(step))
    assert _same(results[0], results[1]) and _same(results[0], results[2])


@pytest.mark.parametrize("batch", [1, 7, 32])
def test_wide_models_are_shared_out(decoders: list[Decoder], batch: int) -> None:
    """The sizes of the test above are worth threads."""
    before = len(os.listdir("/proc/self/task"))
    torch.set_num_threads(3)
    decoders[1].run(decoders[1].step(0, batch, 3))
    # The pool stays, so that it may be there already.
    assert len(os.listdir("/proc/self/task")) >= max(before, 3)


def test_rows_of_sentences_in_turns(decoders: list[Decoder]) -> None:
    """Rows of a layout may come in any order, and rows of one sentence read what the others have written."""
    decoder = decoders[1]
    step = decoder.step(0, batch=6, width=4, packed=True)
    order = torch.randperm(len(step.tokens))
    layout = step.layout
    rows = (layout.sentence, layout.position, layout.slot, layout.last_visible)
    turned = type(layout)(*[row[order] for row in rows], layout.slots)
    expected = decoder.layers.step(step.tokens, layout, step.cache.clone(), step.cross, step.cross_allowed)[0]
    torch.set_num_threads(3)
    for _ in range(5):
        result = decoder.layers.step(step.tokens[order], turned, step.cache.clone(), step.cross, step.cross_allowed)[0]
        torch.testing.assert_close(result, expected[order], atol=1e-4, rtol=1e-4)


@pytest.mark.timeout(120)
def test_several_python_threads_at_once(decoders: list[Decoder]) -> None:
    torch.set_num_threads(2)
    cases = [(decoder, decoder.step(batch, batch, 3)) for decoder in decoders[:2] for batch in (1, 7, 32)]
    expected = [decoder.run(step) for decoder, step in cases]
    wrong: list[int] = []

    def work(number: int) -> None:
        choose = random.Random(number)
        for index in choose.choices(range(len(cases)), k=25):
            decoder, step = cases[index]
            if not _same(decoder.run(step), expected[index]):
                wrong.append(index)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


@pytest.mark.timeout(120)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forks_while_other_threads_decode(decoders: list[Decoder]) -> None:
    """A child has none of its parent's threads, and its parent's locks as they were."""
    torch.set_num_threads(2)
    decoder = decoders[1]
    step = decoder.step(0, 7, 3)

    def scores() -> list[Tensor]:
        # Nothing large enough for threads of PyTorch, which a child does not have.
        given = (step.tokens, step.layout, caches.pop(), step.cross, step.cross_allowed)
        x, _, predicted = decoder.layers.step(*given, prediction=decoder.prediction)
        return [x, predicted.scores, predicted.best, predicted.log_probs]

    caches = [step.cache.clone() for _ in range(30)]
    expected = scores()
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            decoder.run(step)

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    try:
        ended = [_status(_forked(lambda: _same(scores(), expected)), seconds=8) for _ in range(10)]
        assert ended == [0] * 10
        assert _same(scores(), expected)
    finally:
        stop.set()
        for worker in workers:
            worker.join()


def _forked(holds: Callable[[], bool]) -> int:
    """A child process that ends with status 0 if something holds."""
    process = os.fork()
    if process == 0:
        status = 3
        try:
            status = 0 if holds() and holds() else 1
        finally:
            os._exit(status)
    return process


def _status(process: int, seconds: float) -> int:
    """The exit status of a child; that of a killed one if it takes too long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


@pytest.mark.timeout(120)
def test_pool_has_no_race(tmp_path: Path) -> None:
    """ThreadSanitizer watches the pool alone: it knows nothing of what Python and PyTorch do."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    program = tmp_path / "pool"
    command = [compiler, "-std=c++17", "-g1", "-O1", "-pthread", "-fsanitize=thread", f"-I{build.SOURCE.parent}"]
    built = subprocess.run([*command, Path(__file__).with_name("thread_pool.cpp"), "-o", program], capture_output=True)
    if b"tsan" in built.stderr:
        pytest.skip("the compiler has no ThreadSanitizer")
    assert built.returncode == 0, built.stderr.decode()
    ran = subprocess.run([program], capture_output=True, text=True, timeout=100)
    if "unexpected memory mapping" in ran.stderr:
        pytest.skip("ThreadSanitizer does not run here")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "800 calls\n", "")
    # And it would see one.
    racing = subprocess.run([program, "race"], capture_output=True, text=True, timeout=100)
    assert racing.returncode != 0 and "data race" in racing.stderr
