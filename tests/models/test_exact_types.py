"""A model with a part that is not fairseq's own is refused by name, or decodes with fairseq's ids."""

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase, TransformerEncoderLayerBase
from torch import nn
from torch.nn.utils import parametrizations, prune

from fairseq_plugins import wrap
from fairseq_plugins.errors import ConfigurationError
from tests.api.test_wrapping import make_stock_task
from tests.support import fairseq_greedy, ids, make_sample, make_task, make_transformer


class DecoderLayer(TransformerDecoderLayerBase):
    def residual_connection(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return residual + 2 * x


class EncoderLayer(TransformerEncoderLayerBase):
    def residual_connection(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return residual + 2 * x


def doubled(*given: Any) -> Any:
    return 2 * given[-1]


def doubled_first(module: nn.Module, given: Any, output: Any) -> Any:
    return (2 * output[0], *output[1:]) if isinstance(output, tuple) else 2 * output


def quantised(side: nn.Module) -> None:
    (side.layers[0].fc1,) = torch.ao.quantization.quantize_dynamic(nn.Sequential(side.layers[0].fc1), {nn.Linear})


def another_scaling(side: nn.Module) -> None:
    side.layers[0].self_attn.scaling = 1.0


def replaced(side: nn.Module) -> None:
    forward = side.layers[0].fc1.forward
    side.layers[0].fc1.forward = lambda x: 2 * forward(x)


def shared(side: nn.Module) -> None:
    side.layers[1] = side.layers[0]


def shared_attention(side: nn.Module) -> None:
    side.layers[1].self_attn = side.layers[0].self_attn


def of_another_class(find: Callable[[nn.Module], nn.Module]) -> Callable[[nn.Module], None]:
    """Return a change of a part to a subclass whose output is doubled."""

    def change(side: nn.Module) -> None:
        part, kind = find(side), type(find(side))
        forward = lambda self, *given, **named: doubled_first(self, given, kind.forward(self, *given, **named))  # noqa: E731
        part.__class__ = type(f"Doubled{kind.__name__}", (kind,), {"forward": forward})

    return change


CHANGES: list[Callable[[nn.Module], Any]] = [
    of_another_class(lambda side: side.layers[0].self_attn_layer_norm),
    of_another_class(lambda side: side.layers[1].fc1),
    of_another_class(lambda side: side.layers[1].self_attn),
    of_another_class(lambda side: side.embed_tokens),
    lambda side: side.layers[0].register_forward_hook(doubled_first),
    lambda side: side.layers[0].fc1.register_forward_pre_hook(lambda module, given: (doubled(*given),)),
    lambda side: side.dropout_module.register_forward_hook(doubled),
    lambda side: parametrizations.weight_norm(side.layers[0].fc1),
    lambda side: prune.l1_unstructured(side.layers[0].fc2, "weight", 0.5),
    *(quantised, another_scaling, replaced, shared, shared_attention),
]


@pytest.mark.parametrize("options", [{}, {"no_compiled_steps": True}], ids=["native", "torch"])
@pytest.mark.parametrize("part", ["encoder", "decoder"])
@pytest.mark.parametrize("change", [*CHANGES, "layer"])
def test_ids_are_fairseqs_or_the_part_is_named(change: Any, part: str, options: dict[str, Any]) -> None:
    task, model = make_stock_task(), make_transformer(make_task(), 3, ending=False)
    side = getattr(model, part)
    if change == "layer":
        side.layers[0].__class__ = EncoderLayer if part == "encoder" else DecoderLayer
    else:
        change(side)
    sample = make_sample(make_task(), [5, 3, 7])
    expected = ids(fairseq_greedy([model], task, sample, max_len_b=20))
    try:
        generator = wrap(task, decoder="greedy", **options).build_generator([model], Namespace(max_len_b=20))
    except ConfigurationError as refusal:
        assert part == "decoder" or change is CHANGES[3]
        assert str(refusal).startswith("--path: this TransformerModel cannot be decoded") or "decoder=" in str(refusal)
    else:
        assert part == "encoder"
        assert ids(task.inference_step(generator, [model], sample)) == expected


def test_a_model_that_changes_its_scores_is_refused() -> None:
    task, model = make_stock_task(), make_transformer(make_task(), 3)
    model.get_normalized_probs = lambda *given: -type(model).get_normalized_probs(model, *given)
    with pytest.raises(ConfigurationError, match=r"TransformerModel has a replaced get_normalized_probs\(\)"):
        wrap(task, decoder="greedy").build_generator([model], Namespace())
    del model.get_normalized_probs

    class Changed(type(model)):
        def get_normalized_probs(self, *given: Any, **named: Any) -> torch.Tensor:
            return -super().get_normalized_probs(*given, **named)

    model.__class__ = Changed
    with pytest.raises(ConfigurationError, match=r"Changed changes get_normalized_probs\(\)"):
        wrap(task, decoder="greedy").build_generator([model], Namespace())


def test_classes_that_only_build_otherwise_are_taken() -> None:
    class Layer(TransformerDecoderLayerBase):
        def build_fc1(self, *given: Any) -> nn.Linear:
            return super().build_fc1(*given)

        def of_its_own(self) -> None:
            pass

    task, model = make_stock_task(), make_transformer(make_task(), 3, ending=False, checkpoint_activations=True)
    model.decoder.layers[0].__class__ = Layer
    sample = make_sample(make_task(), [5, 3, 7])
    generator = wrap(task, decoder="greedy").build_generator([model], Namespace(max_len_b=20))
    expected = ids(fairseq_greedy([model], task, sample, max_len_b=20))
    assert ids(task.inference_step(generator, [model], sample)) == expected
    assert generator.backend.name == "native"
