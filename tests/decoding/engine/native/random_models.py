"""Random models of sizes that fill no register, for the kernels."""

import random
from typing import Any

import torch
from fairseq.models.transformer import TransformerModel

from fairseq_plugins.tasks.spec_dec import SpecDecTask
from tests.support import make_transformer


def random_sizes(choose: random.Random) -> dict[str, Any]:
    """Options of a small Transformer, for `make_random`; few widths are multiples of anything."""
    heads = choose.choice([1, 2, 3, 4])
    width = heads * choose.choice([1, 3, 4, 8, 11, 16, 20])
    before = choose.random() < 0.5
    sizes: dict[str, Any] = {}
    for side in ("encoder", "decoder"):
        sizes |= {
            f"{side}_embed_dim": width,
            f"{side}_attention_heads": heads,
            f"{side}_ffn_embed_dim": choose.choice([1, 5, 16, 24, 70]),
            f"{side}_layers": choose.randint(1, 3),
            f"{side}_normalize_before": before,
            # Sinusoids have an even number of columns, and more than two.
            f"{side}_learned_pos": width < 4 or width % 2 == 1 or choose.random() < 0.5,
        }
    return {**sizes, "activation_fn": choose.choice(["relu", "gelu"]), "layernorm_embedding": choose.random() < 0.5}


def make_random(task: SpecDecTask, seed: int, **sizes: Any) -> TransformerModel:
    """A random model; of every other linear layer the weights are halves."""
    model = make_transformer(task, seed, ending=False, **sizes)
    for number, module in enumerate(model.modules()):
        if isinstance(module, torch.nn.Linear) and number % 2:
            module.weight.data = module.weight.data.half().float()
    return model
