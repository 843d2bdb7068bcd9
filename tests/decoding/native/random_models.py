"""Random models whose sizes are not multiples of vector registers, for the kernels."""

import random
from typing import Any

import torch
from fairseq.models.transformer import TransformerModel

from fairseq_plugins.tasks.spec_dec import SpecDecTask
from tests.support import make_transformer


def random_sizes(choose: random.Random) -> dict[str, Any]:
    """Return random options of a small Transformer, for `make_random`; most widths are odd."""
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
            # Sinusoidal positions need an even width above 2.
            f"{side}_learned_pos": width < 4 or width % 2 == 1 or choose.random() < 0.5,
        }
    return {**sizes, "activation_fn": choose.choice(["relu", "gelu"]), "layernorm_embedding": choose.random() < 0.5}


def make_random(task: SpecDecTask, seed: int, **sizes: Any) -> TransformerModel:
    """Return a random model; float16 holds the weights of each second linear layer exactly."""
    model = make_transformer(task, seed, ending=False, **sizes)
    for number, module in enumerate(model.modules()):
        if isinstance(module, torch.nn.Linear) and number % 2:
            module.weight.data = module.weight.data.half().float()
    return model
