"""All instruction sets of this processor give the same results; SPEC_DEC_ISA chooses one."""

import importlib
import random
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_plugins.decoding import native
from fairseq_plugins.decoding.kernel_module import Unsupported
from fairseq_plugins.decoding.native import kernels
from fairseq_plugins.decoding.weights import apply_quantized, quantized
from fairseq_plugins.errors import ConfigurationError
from tests.decoding.native.random_models import make_random, random_sizes
from tests.decoding.native.weight_formats import FORMATS, TILES
from tests.support import (
    Options,
    assert_same_hypotheses,
    assert_same_output,
    decode,
    fairseq_beam,
    fairseq_greedy,
    ids,
    make_all,
    make_drafter,
    make_generator,
    make_sample,
    make_task,
    scores,
)

# best first
SETS = kernels().runnable_instruction_sets()


def test_the_best_is_used() -> None:
    known = ["amx", "vnni", "avx512", "avxvnni", "avx2", "dotprod", "portable"]
    assert [name for name in known if name in SETS] == SETS and SETS[-1] == "portable"
    flags = Path("/proc/cpuinfo").read_text().split()
    assert ("avx2" in SETS) == ("avx2" in flags)
    assert ("avxvnni" in SETS) == ("avx_vnni" in flags and "avx2" in flags)
    assert ("dotprod" in SETS) == ("asimddp" in flags)


def results_of(name: str, weight: Tensor, bias: Tensor, x: Tensor) -> dict[Any, Tensor]:
    """Return the layer's outputs for x, by weight format that the instruction set supports."""
    module = kernels()
    module.use_instruction_set(name)
    results = {}
    for weight_format in FORMATS:
        if not module.supports(weight_format) or (weight_format in TILES and weight.size(1) % 32):
            continue
        layer = module.linear(weight, bias, None, format=weight_format, batch_invariant=False)
        results[weight_format] = torch.from_numpy(layer(x)).view(len(x), len(weight))
    return results


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"),
    [(1, 64, 40), (5, 33, 100), (17, 128, 300), (40, 96, 64), (3, 1, 1), (7, 5, 17), (257, 31, 33), (13, 200, 15)],
)
def test_layers_of_every_form(name: str, rows: int, inputs: int, outputs: int) -> None:
    """Results agree but for the last bits; int8 products are equal."""
    torch.manual_seed(rows)
    weight, bias, x = torch.randn(outputs, inputs).half().float(), torch.randn(outputs), torch.randn(rows, inputs)
    results, expected = (results_of(isa, weight, bias, x) for isa in (name, SETS[0]))
    assert len(results) >= 3
    for weight_format, result in results.items():
        if weight_format == FORMATS.INT8:
            assert torch.equal(result, apply_quantized(x, quantized((weight, bias))))
            continue
        theirs = F.linear(x, weight, bias)
        torch.testing.assert_close(result, theirs, atol=1e-4, rtol=1e-5)
        if weight_format in expected:
            torch.testing.assert_close(result, expected[weight_format], atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("name", SETS)
def test_outputs_of_models_of_any_size(name: str) -> None:
    """Outputs equal fairseq's, and those of a sentence decoded alone bit for bit."""
    kernels().use_instruction_set(name)
    choose = random.Random(0)
    for seed in range(12):
        task = make_task(choose.choice([8, 40, 67, 130]))
        sizes = random_sizes(choose)
        model = make_random(task, seed, **sizes)
        sample = make_sample(task, [choose.randint(0, 9) for _ in range(choose.randint(1, 5))], seed)
        search = {"max_len_b": choose.choice([1, 7, 15])}
        generator, _ = make_generator([model], task, Options("jacobi"), **search)
        together = generator.generate([], sample)
        assert name in generator.backend.reason
        assert_same_output(together, fairseq_greedy([model], task, sample, **search))
        for row, (tokens, values) in enumerate(zip(ids(together), scores(together), strict=True)):
            source = sample["net_input"]["src_tokens"][row]
            source = source[source != task.source_dictionary.pad()][None]
            inputs = {"src_tokens": source, "src_lengths": torch.tensor([source.size(1)])}
            alone, _ = decode([model], task, {"net_input": inputs}, Options("greedy"), **search)
            assert ids(alone)[0] == tokens and torch.equal(scores(alone)[0], values)
        if sizes["decoder_embed_dim"] < 8:
            # Normalised states of tiny widths hardly differ, so many hypotheses tie.
            continue
        beams, _ = decode([model], task, sample, Options("fast-beam"), beam_size=3, **search)
        assert_same_hypotheses(beams, fairseq_beam([model], task, sample, 3, **search))


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("options", [{}, {"drafter_context": "features"}], ids=["tokens", "features"])
def test_drafts_are_the_same(name: str, options: dict[str, Any]) -> None:
    """Drafts in fp32 and int8; equal iterations show equal drafts."""
    task, model, sample = make_all(9, 1, [4, 0, 12, 7, 20, 3], 1)
    transition = {"transition_rank": 3, "transition_state": 5, "src_embedding_copy": True}
    drafter = make_drafter(task, 2, verifier=model, **transition, **options)
    expected = fairseq_greedy([model], task, sample, max_len_b=30, min_len=20)
    emitted = []
    for isa in (name, SETS[0]):
        kernels().use_instruction_set(isa)
        for fp32_drafts in (True, False):
            how = Options("gad", 12, fp32_drafts=fp32_drafts)
            output, stats = decode([model], task, sample, how, drafter, max_len_b=30, min_len=20)
            assert_same_output(output, expected)
            emitted.append([sentence.emitted for sentence in stats])
    assert emitted[0] == emitted[2]
    assert name == "portable" or emitted[1] == emitted[3]
    with pytest.raises(ValueError, match="this processor does not run sse9"):
        kernels().use_instruction_set("sse9")


@pytest.fixture
def anew() -> Iterator[None]:
    """Reset `kernels` to its state in a new process."""
    kernels.cache_clear()
    yield
    kernels.cache_clear()


@pytest.mark.usefixtures("anew")
@pytest.mark.parametrize("name", [*SETS, "sse9", "native"])
def test_the_environment_names_a_set(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of an unsupported set would crash the process at their first instruction."""
    monkeypatch.setenv("SPEC_DEC_ISA", name)
    if name in SETS:
        assert kernels().instruction_set() == name
    else:
        with pytest.raises(ConfigurationError, match=f"SPEC_DEC_ISA {name}: this processor runs .*portable; name one"):
            kernels()


@pytest.mark.usefixtures("anew")
def test_a_package_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding falls back to PyTorch, with a reason."""
    real = importlib.import_module

    def without(name: str, *more: Any) -> ModuleType:
        if name.endswith("._kernels"):
            raise ImportError("no such file")
        return real(name, *more)

    monkeypatch.setattr(native.importlib, "import_module", without)
    with pytest.raises(Unsupported, match="not installed"):
        kernels()
    task, model, sample = make_all(30, 1, [3, 5])
    generator, _ = make_generator([model], task, Options("greedy"), max_len_b=9)
    assert_same_output(generator.generate([], sample), fairseq_greedy([model], task, sample, max_len_b=9))
    assert generator.backend.name == "torch"
    assert "the compiled kernels are not installed (no such file); pip install" in generator.backend.reason
