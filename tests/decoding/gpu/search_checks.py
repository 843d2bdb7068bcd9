"""Checks of greedy search and of the drafter that reads states, in Triton's interpreter, against the loop in PyTorch.

`TRITON_INTERPRET=1 python -m tests.decoding.gpu.search_checks [NAME...]` runs them.
"""

import sys
import time
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_plugins.decoding.gpu.backend import GpuBackend
from fairseq_plugins.decoding.reference.backend import TorchBackend
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.decoding.reference.state import Decoded
from tests.decoding.gpu.interpreter import multiply_by_rows, patch_once
from tests.support import Options, make_drafter, make_generator, make_sample, make_task, make_transformer

TASK = make_task(12)
SMALL = {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in (("layers", 1), ("attention_heads", 2), ("ffn_embed_dim", 16))
}
PRE_NORM = {"encoder_normalize_before": True, "decoder_normalize_before": True}
MODELS: dict[str, dict[str, Any]] = {
    "post-norm": {},
    "pre-norm": {**PRE_NORM, "encoder_layers": 2, "decoder_layers": 2, "decoder_learned_pos": True},
    "odd widths": {
        **PRE_NORM,
        "encoder_embed_dim": 36,
        "decoder_embed_dim": 36,
        "decoder_attention_heads": 3,
        "activation_fn": "gelu",
        "layernorm_embedding": True,
        "no_decoder_final_norm": True,
    },
}
LENGTHS = [3, 8, 17]


def decoded(
    model: nn.Module, how: Options, drafter: nn.Module | None, engine: type, lengths: list[int], **given: Any
) -> Decoded:
    """Decode on one of the backends."""
    generator, _ = make_generator([model], TASK, how, drafter, max_len_b=7, **given)
    context = how.context([model], drafter, TASK)
    sample = make_sample(TASK, lengths)
    request = generator.request(sample)
    if engine is GpuBackend:
        return GpuBackend(how.spec, how.options, context, active_sentences=2).decode(*request)
    return TorchBackend(how.build([model], drafter, TASK, Engine())).decode(*request)


def ids(output: Decoded) -> list[list[int]]:
    return [hypotheses[0].tokens.tolist() for hypotheses in output.outputs]


def scores(output: Decoded) -> Tensor:
    return torch.cat([hypotheses[0].log_probs.float() for hypotheses in output.outputs])


def greedy() -> None:
    """Ids and scores of several architectures, with refilled places."""
    for name, options in MODELS.items():
        model = make_transformer(TASK, 1, **{**SMALL, **options})
        how = Options("greedy")
        ours, theirs = (decoded(model, how, None, kind, LENGTHS) for kind in (GpuBackend, TorchBackend))
        assert ids(ours) == ids(theirs), name
        torch.testing.assert_close(scores(ours), scores(theirs).cpu(), rtol=1e-4, atol=1e-4)


def features() -> None:
    """The same drafts as in PyTorch: tokens of each iteration are equal, not only ids."""
    for seed, options, drafter_options in (
        (10, {}, {"transition_rank": 3, "transition_state": 5, "src_embedding_copy": True}),
        (15, PRE_NORM, {"decoder_normalize_before": True, "transition_rank": 3, "decoder_layers": 2}),
        (25, PRE_NORM, {"positions_every_layer": True}),
    ):
        model = make_transformer(TASK, 2, **{**SMALL, **options})
        sizes = {**SMALL, "decoder_layers": 1, "drafter_context": "features", **drafter_options}
        drafter = make_drafter(TASK, seed, 4, verifier=model, **sizes)
        how = Options("gad", fixed_width=True)
        ours, theirs = (decoded(model, how, drafter, kind, LENGTHS) for kind in (GpuBackend, TorchBackend))
        assert ids(ours) == ids(theirs)
        assert ours.emitted == theirs.emitted
        assert max(map(max, ours.emitted)) > 1


def half() -> None:
    """In half precision bits are the same alone, in a batch, and with drafts."""
    for dtype in (torch.float16, torch.bfloat16):
        model = make_transformer(TASK, 4, **SMALL)
        drafter = make_drafter(TASK, 5, 4, verifier=model, **SMALL, drafter_context="features").to(dtype)
        model.to(dtype)
        lengths = LENGTHS[:2]
        outputs = [decoded(model, Options("greedy"), None, GpuBackend, lengths)]
        outputs.append(decoded(model, Options("gad", fixed_width=True), drafter, GpuBackend, lengths))
        assert ids(outputs[0]) == ids(outputs[1])
        assert torch.equal(scores(outputs[0]), scores(outputs[1]))
        alone = decoded(model, Options("greedy"), None, GpuBackend, lengths[:1])
        assert ids(alone) == ids(outputs[0])[:1]
        assert torch.equal(scores(alone), scores(outputs[0])[: len(scores(alone))])


CHECKS = {"greedy": greedy, "features": features, "half": half}

if __name__ == "__main__":
    torch.set_num_threads(1)
    patch_once()
    multiply_by_rows()
    for name in sys.argv[1:] or CHECKS:
        start = time.perf_counter()
        CHECKS[name]()
        print(f"{name}: {time.perf_counter() - start:.1f} s", flush=True)
