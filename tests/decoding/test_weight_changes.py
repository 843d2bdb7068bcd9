"""A generator decodes with the weights that its models have now, whoever changed them."""

import copy
import pickle
from argparse import Namespace
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerDecoderBase
from fairseq.modules import MultiheadAttention
from fairseq.optim.adam import Adam
from torch import nn

from fairseq_plugins.decoding.weight_changes import WeightSnapshot
from fairseq_plugins.errors import ConfigurationError
from tests.support import (
    Options,
    fairseq_beam,
    fairseq_greedy,
    ids,
    make_all,
    make_drafter,
    make_generator,
    make_sample,
    make_task,
    make_transformer,
)

Change = Callable[[nn.Module, nn.Module], Any]


def _values(model: nn.Module, other: nn.Module) -> list[tuple[nn.Parameter, torch.Tensor]]:
    return [(own, its.detach()) for own, its in zip(model.parameters(), other.parameters(), strict=True)]


def write_data(model: nn.Module, other: nn.Module) -> None:
    """As programs that decode with averaged weights do; version counters do not see it."""
    for own, its in _values(model, other):
        own.data.copy_(its)


def set_data(model: nn.Module, other: nn.Module) -> None:
    for own, its in _values(model, other):
        own.data = its


@torch.no_grad()
def write_in_place(model: nn.Module, other: nn.Module) -> None:
    for own, its in _values(model, other):
        own.copy_(its)


def train(model: nn.Module, _: nn.Module) -> None:
    """As fairseq does: its Adam writes to `parameter.data`."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.grad = torch.randn_like(parameter)
    Adam(trained, lr=0.05).step()


def set_epsilon(model: nn.Module, _: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 2.0


def replace_layer(model: nn.Module, other: nn.Module) -> None:
    model.decoder.layers[1] = other.decoder.layers[1]


def replace_weight(model: nn.Module, other: nn.Module) -> None:
    model.decoder.layers[1].fc2.weight = nn.Parameter(-other.decoder.layers[1].fc2.weight)


def prepared(decoder: str) -> tuple[Any, nn.Module, dict[str, Any], Namespace]:
    """Return the task of a decoder ("torch" and "half": of `greedy`), a model, a batch, and options of generation."""
    task = make_task(50, decoding_method="fast-beam" if decoder == "fast-beam" else "greedy")
    task.cfg.no_compiled_steps = decoder == "torch"
    model = make_transformer(task, 3).to(torch.float16 if decoder == "half" else torch.float32)
    return task, model, make_sample(task, [4, 0, 12, 7], 1), Namespace(beam=3, max_len_b=20)


CHANGES: dict[str, Change] = {
    "load": lambda model, other: model.load_state_dict(other.state_dict()),
    "assign": lambda model, other: nn.Module.load_state_dict(model, other.state_dict(), assign=True),
    "set data": set_data,
    "write data": write_data,
    "write in place": write_in_place,
    "write in inference mode": torch.inference_mode()(lambda model, other: model.load_state_dict(other.state_dict())),
    "round to half": lambda model, _: model.bfloat16(),
    # The memory of the first weights is free between the two.
    "round and back": lambda model, _: model.bfloat16().float(),
    "replace a layer": replace_layer,
    "replace a weight": replace_weight,
    "train": train,
    "set the scale": lambda model, _: setattr(model.decoder, "embed_scale", 9.0),
    "set epsilon": set_epsilon,
    "set an activation": lambda model, _: setattr(model.encoder.layers[0], "activation_fn", torch.tanh),
}


@pytest.mark.parametrize("decoder, change", product(["greedy", "fast-beam", "torch", "half"], CHANGES))
def test_changed_weights_are_used(decoder: str, change: str) -> None:
    task, model, sample, args = prepared(decoder)
    other = make_transformer(task, 4).to(next(model.parameters()).dtype)
    generator = task.build_generator([model], args)
    before = ids(generator.generate([model], sample))
    backend = generator.backend
    assert ids(generator.generate([model], sample)) == before and generator.backend is backend
    torch.manual_seed(1)
    CHANGES[change](model, other)
    fresh = ids(task.build_generator([model], args).generate([model], sample))
    assert ids(generator.generate([model], sample)) == fresh
    assert "round" in change or fresh != before


def add_hook(part: nn.Module) -> None:
    part.register_forward_hook(lambda module, inputs, output: output * 2)


def add_pre_hook(part: nn.Module) -> None:
    part.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))


def replace_forward(part: nn.Module) -> None:
    forward = part.forward
    part.forward = lambda *inputs: forward(*inputs) * 2


class Doubled(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 2


def replace_class(part: nn.Module) -> None:
    part.__class__ = Doubled


@pytest.mark.parametrize("change", [add_hook, add_pre_hook, replace_forward, replace_class])
@pytest.mark.parametrize("decoder", ["greedy", "fast-beam", "torch"])
def test_parts_that_compute_something_else_are_noticed(decoder: str, change: Callable[[nn.Module], None]) -> None:
    """An encoder with them runs in PyTorch; a decoder is refused, as when the generator is built."""
    task, model, sample, args = prepared(decoder)
    generator = task.build_generator([model], args)
    before = ids(generator.generate([model], sample))
    change(model.encoder.layers[0].fc2)
    after = ids(generator.generate([model], sample))
    assert after == ids(task.build_generator([model], args).generate([model], sample)) != before
    assert after == ids(fairseq_beam([model], task, sample, 3 if decoder == "fast-beam" else 1, max_len_b=20))
    change(model.decoder.layers[0].fc2)
    with pytest.raises(ConfigurationError, match="its Linear.*hook|its Linear.*replaced forward|has a .* Doubled"):
        generator.generate([model], sample)


def test_a_changed_drafter_is_used() -> None:
    task, verifier, sample = make_all(50, 3, [4, 0, 12, 7], 1)
    drafter, other = (make_drafter(task, seed, 5, verifier) for seed in (1, 2))
    generator, _ = make_generator([verifier], task, Options("gad", 5), drafter)
    expected = ids(generator.generate([verifier], sample))
    backend = generator.backend
    drafter.load_state_dict(other.state_dict())
    assert ids(generator.generate([verifier], sample)) == expected and generator.backend is not backend


@pytest.mark.parametrize("change", ["load", "write data", "replace a layer"])
def test_decoders_that_share_a_drafter_notice_a_changed_verifier(change: str) -> None:
    """Each of them moves joined weights when it reads them again."""
    task, verifier, sample = make_all(50, 3, [4, 0, 12, 7], 1)
    drafter, other = make_drafter(task, 1, 5, verifier), make_transformer(task, 4)
    methods = (Options("gad", 5), Options("iad", 5, iad_fallback="gad"))
    generators = [make_generator([verifier], task, method, drafter, max_len_b=20)[0] for method in methods]
    before = [ids(generator.generate([verifier], sample)) for generator in generators]
    CHANGES[change](verifier, other)
    expected = ids(fairseq_greedy([verifier], task, sample, max_len_b=20))
    assert expected not in before
    for _ in range(2):
        assert [ids(generator.generate([verifier], sample)) for generator in generators] == [expected] * 2


def test_inference_tensors_are_compared_by_their_values() -> None:
    """They have no version counter."""
    with torch.inference_mode():
        model = make_transformer(make_task(50), 3, ending=False)
    snapshot = WeightSnapshot([model])
    assert snapshot.is_current()
    with torch.inference_mode():
        model.decoder.layers[0].fc1.weight[1, 1] += 1
    assert not snapshot.is_current()


def test_training_another_model_changes_nothing() -> None:
    """After a step of any optimizer weights are compared by their values: reading them again takes longer."""
    models = [make_transformer(make_task(50), seed) for seed in (3, 4)]
    train(*models)
    snapshot = WeightSnapshot(models[1:])
    train(*models)
    assert snapshot.is_current()
    train(*reversed(models))
    assert not snapshot.is_current()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (None, "get_normalized_probs"),  # of the model itself
        (BaseFairseqModel, "get_normalized_probs"),
        (TransformerDecoderBase, "output_layer"),
        (MultiheadAttention, "forward"),
        (nn.Linear, "forward"),
        (nn.Module, "__call__"),
    ],
)
def test_replaced_methods_are_refused(monkeypatch: pytest.MonkeyPatch, kind: Any, name: str) -> None:
    """By a program's own, before or after the first batch: the engine computes fairseq's."""
    task, model, sample, args = prepared("greedy")
    generator = task.build_generator([model], args)
    generator.generate([model], sample)
    kind = kind or model
    own = getattr(kind, name)
    monkeypatch.setattr(kind, name, lambda *given, **named: own(*given, **named))
    with pytest.raises(ConfigurationError, match=f"replaced {name}"):
        generator.generate([model], sample)
    with pytest.raises(ConfigurationError, match=f"replaced {name}"):
        task.build_generator([model], Namespace()).generate([model], sample)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_generators_are_not_copied(copied: Callable[[Any], Any]) -> None:
    task, model, _, args = prepared("greedy")
    generator = task.build_generator([model], args)
    with pytest.raises(TypeError, match="^a generator is not copied or pickled; build one"):
        copied(generator)
