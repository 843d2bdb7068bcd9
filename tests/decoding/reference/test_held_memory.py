"""Memory of verifier and drafter: weights and caches, and no second copy of a large model's weights."""

import ctypes
import gc
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fairseq_plugins.decoding.generator import DraftVerifyGenerator
from fairseq_plugins.decoding.native.model import NativeWeights
from fairseq_plugins.decoding.reference.cached_decoder import CachedDecoder
from fairseq_plugins.decoding.reference.encoder import FusedEncoder
from fairseq_plugins.decoding.reference.engine import Engine
from tests.support import (
    Options,
    both_sides,
    fairseq_greedy,
    ids,
    make_all,
    make_drafter,
    make_generator,
    make_task,
    make_transformer,
)

STATM = Path("/proc/self/statm")
needs_proc = pytest.mark.skipif(not STATM.exists(), reason="no /proc")

# Transformer-base with fewer layers and a smaller vocabulary.
BASE = both_sides(embed_dim=512, ffn_embed_dim=2048, layers=2, attention_heads=8)


def in_use() -> int:
    """Return the allocated bytes of this process, without free memory that the allocator keeps."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(STATM.read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def weight_bytes(*models: nn.Module) -> int:
    """Return the bytes of models' parameters, shared ones counted once."""
    parameters = {id(parameter): parameter for model in models for parameter in model.parameters()}
    return sum(parameter.numel() * parameter.element_size() for parameter in parameters.values())


KINDS = [{"drafter_context": "features"}, {"drafter_attention": "full", "activation_fn": "relu"}]


class Ordinary:
    """A verifier and a drafter of ordinary size, a batch, and fairseq's own output for it."""

    def __init__(self, options: dict[str, Any]) -> None:
        sizes = {**BASE, "share_all_embeddings": True}
        self.task, self.verifier, self.sample = make_all(8000, 1, [20, 7, 12], ending=False, **sizes)
        self.drafter = make_drafter(self.task, 2, verifier=self.verifier, **{**sizes, **options})
        self.expected = ids(fairseq_greedy([self.verifier], self.task, self.sample, max_len_b=20))
        self.on_paper = weight_bytes(self.verifier, self.drafter)

    def decoded(self, engine: Engine | NativeWeights) -> DraftVerifyGenerator:
        """Return a generator that has decoded the batch, with drafts in fp32."""
        how = Options("gad", 5, fp32_drafts=True)
        generator, _ = make_generator([self.verifier], self.task, how, self.drafter, engine=engine, max_len_b=20)
        assert ids(generator.generate([], self.sample)) == self.expected
        return generator


@needs_proc
@pytest.mark.parametrize("options", KINDS)
def test_weights_are_held_once(options: dict[str, Any]) -> None:
    """PyTorch holds weights once, and so do the kernels, unless these are packed."""
    models = Ordinary(options)
    # Fusing projections allocates memory and frees that of their parts.
    both = (models.verifier, models.drafter)
    fused = [CachedDecoder(model.decoder, Engine()) for model in both]
    fused += [FusedEncoder(model.encoder, Engine()) for model in both if model.encoder is not None]
    taken, generators = [], []
    for engine in (Engine(), NativeWeights(packed=False), NativeWeights(packed=True)):
        before = in_use()
        generators.append(models.decoded(engine))
        assert generators[-1].backend.name == ("torch" if isinstance(engine, Engine) else "native")
        taken.append(in_use() - before)
    # Joined projections in a copy would be a fifth of the weights more.
    assert max(taken[:2]) < 0.2 * models.on_paper < 0.6 * models.on_paper < taken[2], taken


@needs_proc
def test_caches_take_what_is_written() -> None:
    """Caches grow with outputs: the limit is 4000 tokens, and outputs are much shorter."""
    task, model, sample = make_all(60, 1, [5] * 24, **both_sides(embed_dim=512), max_target_positions=4096)
    # Every output is EOS alone.
    with torch.no_grad():
        model.decoder.output_projection.weight.zero_()
    model.decoder.output_projection.bias = nn.Parameter(torch.nn.functional.one_hot(torch.tensor(2), 60).float())
    generator, _ = make_generator([model], task, Options("greedy"), max_len_b=4000, min_len=0)
    assert generator.backend.name == "native"
    before = in_use()
    assert ids(generator.generate([], sample)) == [[2]] * 24
    could = 24 * 4000 * 2 * 2 * 512 * 4
    assert in_use() - before < 0.02 * could
    beams, _ = make_generator([model], task, Options("fast-beam"), max_len_b=4000, min_len=0, beam_size=1)
    assert ids(beams.generate([], sample)) == [[2]] * 24
    assert in_use() - before < 0.05 * could


def test_fused_weights_are_the_modules_own() -> None:
    """Fusing keeps values and names, shares memory with the parameters, and allocates nothing the second time."""
    _, model, sample = make_all(30, 1, [3, 5])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.inference_mode():
        layer = CachedDecoder(model.decoder, Engine()).layers[0]
        FusedEncoder(model.encoder, Engine())
    after = model.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    attention = model.decoder.layers[0].self_attn
    assert layer.self_qkv[0].data_ptr() == attention.q_proj.weight.data_ptr()
    again = CachedDecoder(model.decoder, Engine()).layers[0]
    assert again.self_qkv[0].data_ptr() == layer.self_qkv[0].data_ptr()
    assert again.cross_key_value[1].data_ptr() == layer.cross_key_value[1].data_ptr()

    model.train()
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    inputs = sample["net_input"]
    model(inputs["src_tokens"], inputs["src_lengths"], torch.full((2, 4), 5))[0].square().mean().backward()
    optimizer.step()
    assert not torch.equal(attention.k_proj.weight, before["decoder.layers.0.self_attn.k_proj.weight"])
    assert torch.equal(layer.self_qkv[0][16:32], attention.k_proj.weight)


def test_parameters_that_are_views_are_not_fused() -> None:
    model = make_transformer(make_task(30), 1)
    attention = model.decoder.layers[0].self_attn
    flat = torch.zeros(2, 16, 16)
    flat[0] = attention.q_proj.weight.data
    attention.q_proj.weight.data = flat[0]
    layer = CachedDecoder(model.decoder, Engine()).layers[0]
    assert attention.q_proj.weight.data_ptr() == flat.data_ptr()
    assert torch.equal(layer.self_qkv[0][:16], flat[0])
    assert torch.equal(layer.self_qkv[0][16:32], attention.k_proj.weight)
