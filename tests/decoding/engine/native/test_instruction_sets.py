"""The kernels without any processor's own instructions give what those for this processor give."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from fairseq_plugins.decoding.engine.native.kernels import Kernels
from fairseq_plugins.decoding.engine.native.layers import (
    HALVES_IN_TILES,
    IN_PANELS,
    IN_ROWS,
    INT8_IN_PANELS,
    NativeLayers,
    NativeLinear,
    Predicted,
    Prediction,
)

from fairseq_plugins.decoding.constraints import Constraints
from fairseq_plugins.decoding.engine.layout import Chain, Span
from fairseq_plugins.decoding.engine.native import build
from fairseq_plugins.errors import ConfigurationError
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

pytestmark = pytest.mark.skipif(build.library() is None, reason="no C++ compiler")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`library` as a new process has it."""
    build.library.cache_clear()
    yield
    build.library.cache_clear()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_portable_equals_native(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the last bits; and with each of them a sentence says to the last bit what it says alone."""
    builds = {}
    for name in ("native", "portable"):
        monkeypatch.setenv("SPEC_DEC_ISA", name)
        build.library.cache_clear()
        builds[name] = Kernels.build()
    assert len({kernels.functions._name for kernels in builds.values()}) == 2
    assert not builds["portable"].functions.has_int8_products()

    torch.manual_seed(0)
    choose = random.Random(0)
    for _ in range(40):
        sizes = Sizes.some(choose)
        layers, ends = random_layers(sizes), random_ends(sizes)
        step = random_step(sizes, choose, choose.randint(1, 5), choose.randint(1, 8), choose.random() < 0.5)
        projection = random_linear(sizes.width, sizes.vocabulary)
        predicted = []
        for kernels in builds.values():
            compiled = kernels.layers(layers, ends=ends)
            limits = kernels.limits(sizes.vocabulary, Constraints(PAD, UNK, EOS, max_len=60))
            end = Prediction(kernels.compiled_linear(projection), limits)
            predicted.append(predict(compiled, step, end))
            if isinstance(step.layout, Chain):
                for sentence, rows in ((0, 1), (len(step.tokens) - 1, step.layout.width)):
                    alone = predict(compiled, sentence_alone(step, sentence, rows), end)
                    assert torch.equal(alone.scores[0], predicted[-1].scores[sentence, :rows])
                    assert torch.equal(alone.log_probs[0], predicted[-1].log_probs[sentence, :rows])
        native, portable = predicted
        assert torch.equal(native.best, portable.best)
        torch.testing.assert_close(native.scores, portable.scores, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(native.log_probs, portable.log_probs, atol=1e-4, rtol=1e-4)


def predict(layers: NativeLayers, step: Step, end: Prediction) -> Predicted:
    """What a step says, which leaves the cache as it was."""
    return layers.step(**vars(replace(step, cache=step.cache.clone())), prediction=end)[2]


def sentence_alone(step: Step, sentence: int, rows: int) -> Step:
    """The first rows of one sentence of a chain, without the padding of its source."""
    only = slice(sentence, sentence + 1)
    lengths = step.layout.lengths[only]
    source = slice(None)
    if step.cross_allowed is not None:
        seen = step.cross_allowed[sentence].nonzero()
        source = slice(int(seen[0]), int(seen[-1]) + 1)
    return Step(
        tokens=step.tokens[only, :rows].contiguous(),
        layout=Chain(lengths, Span(int(lengths), int(lengths)), rows),
        cache=step.cache[:, only],
        cross=step.cross[:, only, source].contiguous(),
        cross_allowed=None if step.cross_allowed is None else step.cross_allowed[only, source].contiguous(),
    )


def test_every_set_has_a_file_of_its_own() -> None:
    recipes = [build.Recipe("c++", name) for name in ("native", "avx2", "avx512", "vnni", "amx", "portable")]
    recipes += [build.Recipe("c++", sanitize="address"), build.Recipe("g++")]
    assert len({recipe.version for recipe in recipes}) == len(recipes)


@pytest.mark.parametrize("name", ["avx2", "avx512", "vnni", "amx"])
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_set_that_the_processor_has(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Layers of all forms give what they give with all that the processor has; drafts in int8 the very same."""
    if build.Recipe("c++", name).missing_instructions():
        pytest.skip(f"no {name} on this processor")
    if name == "avx2" and build.Recipe("c++", "avx512").missing_instructions():
        pytest.skip("that is what native means here")
    native = Kernels.build()
    monkeypatch.setenv("SPEC_DEC_ISA", name)
    build.library.cache_clear()
    forced = Kernels.build()
    assert native.functions._name != forced.functions._name
    assert bool(forced.functions.has_tiles()) == (name == "amx")
    torch.manual_seed(0)
    for rows, inputs, outputs in ((1, 64, 40), (5, 33, 100), (17, 128, 300), (40, 96, 64)):
        weight, bias = random_linear(inputs, outputs)
        layer, x = (weight.half().float(), bias), torch.randn(rows, inputs)
        for form in (IN_PANELS, IN_ROWS, INT8_IN_PANELS):
            results = [NativeLinear(kernels.functions, layer, form)(x) for kernels in (native, forced)]
            near = 0 if form == INT8_IN_PANELS else 1e-5
            torch.testing.assert_close(*results, atol=near, rtol=near)
    for kernels in (native, forced):
        if kernels.functions.has_tiles():
            in_tiles = NativeLinear(kernels.functions, layer, HALVES_IN_TILES)
            torch.testing.assert_close(in_tiles(x), torch.nn.functional.linear(x, *layer), atol=1e-5, rtol=1e-5)


def test_unknown_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEC_DEC_ISA", "sse9")
    with pytest.raises(ConfigurationError, match="SPEC_DEC_ISA=sse9 is unknown, it may be native, avx2"):
        build.library()


def test_names_of_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which compilers and systems write differently."""
    has = "flags : fpu avx2 fma avx512f avx512bw avx512dq avx512vl avx512_vnni avx512_fp16 amx_tile"
    monkeypatch.setattr(build, "_processor", lambda: has)
    assert build.Recipe("c++", "vnni").missing_instructions() == []
    assert build.Recipe("c++", "amx").missing_instructions() == ["amx-bf16"]


def test_set_that_the_processor_has_not(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Such a build would end the process at its first instruction."""
    monkeypatch.setattr(build, "_processor", lambda: "flags : fpu avx2 fma avx512f")
    monkeypatch.setenv("SPEC_DEC_ISA", "avx512")
    assert build.library() is None
    (said,) = caplog.messages
    assert said == (
        "SPEC_DEC_ISA=avx512: this processor has no avx512bw, avx512dq, avx512vl: decoding runs on PyTorch's operations"
    )
