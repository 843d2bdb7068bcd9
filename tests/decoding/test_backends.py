"""Choice of the backend, and its reason."""

from dataclasses import replace
from typing import Any

import pytest

from fairseq_plugins.decoding import methods
from fairseq_plugins.decoding.backends import Backend, choose_backend
from fairseq_plugins.decoding.method import MethodContext
from tests.decoding.methods.test_blockwise import make_blockwise
from tests.support import Options, make_drafter, make_task, make_transformer

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


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"weights": None}, "--no-compiled-steps"),
        ({"models": 2}, "an ensemble of several models"),
        ({"trace": object()}, "--trace-file"),
        ({"accept_score": "drafter"}, "--accept-score drafter"),
        ({"activation_fn": "tanh"}, "the kernels do not support the activation tanh"),
    ],
    ids=["options", "ensemble", "trace", "drafter's scores", "activation"],
)
def test_refusals_have_reasons(change: dict[str, Any], reason: str) -> None:
    task = make_task(20)
    change = dict(change)
    verifier = make_transformer(task, 1, activation_fn=change.pop("activation_fn", "relu"))
    how = Options("gad++", 4, top_beta=2, tau=1.0, accept_score=change.pop("accept_score", "verifier"))
    drafter = make_drafter(task, 2, 5, verifier=verifier)
    models = [verifier] * change.pop("models", 1)
    context = how.context(models, drafter, task)
    if "weights" in change:
        context = replace(context, weights=change.pop("weights"))
    backend = chosen(how, context, **change)
    assert backend.name == "torch" and reason in backend.reason
