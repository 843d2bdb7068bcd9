"""Choice of the backend, and its reason."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fairseq_plugins.decoding import methods
from fairseq_plugins.decoding.backends import Backend, choose_backend
from fairseq_plugins.decoding.gpu import backend as gpu_backend
from fairseq_plugins.decoding.method import MethodContext
from fairseq_plugins.decoding.reference import fixed_shapes
from tests.decoding.methods.test_blockwise import make_blockwise
from tests.support import Options, make_all, make_drafter, make_generator, make_task, make_transformer

DECODERS = [spec for spec in methods.METHODS if spec.build is not None]


def context_of(how: Options) -> MethodContext:
    """Return the context of a method, with a drafter if it needs one."""
    task = make_task(20)
    verifier: Any = make_transformer(task, 1)
    if how.spec.name == "blockwise":
        task, verifier = make_blockwise(1)
    drafter = make_drafter(task, 2, 5, verifier=verifier, drafter_context="features")
    if how.spec.name == "nat":
        drafter = make_drafter(task, 2, 5, verifier=verifier)
        return replace(how.context([drafter], drafter, task), models=[drafter])
    return how.context([verifier], drafter, task, beam=2 if how.spec.searches_beams else 1)


def options_of(name: str) -> Options:
    """Return the method with its required options."""
    return Options(name, **({"preset": "high-quality"} if name == "gad++" else {}))


def chosen(how: Options, context: MethodContext, **more: Any) -> Backend:
    return choose_backend(how.spec, how.options, context, **more)


@pytest.mark.parametrize("spec", DECODERS, ids=lambda spec: spec.name)
def test_every_decoder_names_a_backend(spec: Any) -> None:
    """The kernels are chosen if they support the method; otherwise there is a reason."""
    how = options_of(spec.name)
    backend = chosen(how, context_of(how))
    assert backend.name == ("torch" if spec.build_kernels is None else "native")
    assert backend.reason and "\n" not in backend.reason


def test_refusals_have_reasons() -> None:
    """Other tests have those of options and of models."""
    task = make_task(20)
    how, verifier = Options("greedy"), make_transformer(task, 1)
    for models, trace, reason in (
        ([verifier] * 2, None, "an ensemble of several models"),
        ([verifier], object(), "--trace-file"),
    ):
        backend = chosen(how, how.context(models, None, task), trace=trace)
        assert backend.name == "torch" and reason in backend.reason


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, None),
        ({"hip": "6.4"}, "it needs an NVIDIA GPU of compute capability 8.0 or later"),
        ({"capability": (7, 5)}, "it needs an NVIDIA GPU of compute capability 8.0 or later"),
        ({"problem": "Triton is not installed; install triton"}, "Triton is not installed; install triton"),
        ({"triton": "3.5.1"}, "it needs Triton 3.6 or later, and this is 3.5.1"),
        ({"triton": "3.10.0+git1"}, None),
    ],
)
def test_gpus_that_triton_does_not_serve(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], reason: str | None
) -> None:
    given: dict[str, Any] = {"hip": None, "capability": (8, 0), "problem": "", "triton": "3.6.0", **changed}
    monkeypatch.setattr(torch.version, "hip", given["hip"])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: given["capability"])
    monkeypatch.setattr(gpu_backend, "triton_problem", lambda: given["problem"])
    monkeypatch.setattr(gpu_backend, "import_module", lambda name: SimpleNamespace(__version__=given["triton"]))
    model = SimpleNamespace(parameters=lambda: iter([SimpleNamespace(device=torch.device("cuda"))]))
    context: Any = SimpleNamespace(models=[model])
    assert gpu_backend.GpuBackend.refusal(object.__new__(gpu_backend.GpuBackend), context) == reason


@pytest.mark.parametrize(("spec", "reason"), [(None, "Triton is not installed; install triton"), ("found", None)])
def test_interpreting_needs_triton(monkeypatch: pytest.MonkeyPatch, spec: str | None, reason: str | None) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(fixed_shapes, "find_spec", lambda name: spec)
    context: Any = SimpleNamespace(models=[make_transformer(make_task(20), 1)])
    assert gpu_backend.GpuBackend.refusal(object.__new__(gpu_backend.GpuBackend), context) == reason


def test_kernels_run_on_the_gpu_of_their_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton launches on the current one, which belongs to the thread."""
    task, model, sample = make_all(20, 1, [4, 6])
    generator, _ = make_generator([model], task, Options("greedy"), max_len_b=5)
    generator.backend.device = torch.device("cuda:1")  # type: ignore[union-attr]
    entered: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device", lambda device: entered.append(device) or nullcontext())
    generator.generate([model], sample)
    assert entered == [torch.device("cuda:1")]
    iterations = len(list(generator.steps(sample)))
    assert iterations > 0 and entered == [torch.device("cuda:1")] * (iterations + 3)
