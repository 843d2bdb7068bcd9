"""What verifier and drafter hold is their weights and caches: no weight of a large model is held twice."""

import gc
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairseq_plugins.benchmarks.machine import resident
from fairseq_plugins.decoding.engine.cached_decoder import CachedDecoder
from fairseq_plugins.decoding.engine.encoder import FusedEncoder
from fairseq_plugins.decoding.engine.engine import Engine
from fairseq_plugins.decoding.engine.memory import new_zeros
from fairseq_plugins.decoding.generator import DraftVerifyGenerator
from fairseq_plugins.decoding.stats import DecodingStats
from tests.support import Options, fairseq_greedy, ids, make_drafter, make_sample, make_task, make_transformer

# Transformer-base with fewer layers and a smaller vocabulary.
BASE = {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in (("embed_dim", 512), ("ffn_embed_dim", 2048), ("layers", 2), ("attention_heads", 8))
}


def reachable_tensors(*roots: object) -> Iterator[Tensor]:
    """All tensors that an object keeps alive; of functions those in their closures."""
    waiting, seen = list(roots), set()
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, type | types.ModuleType | types.BuiltinFunctionType):
            continue
        seen.add(id(thing))
        if isinstance(thing, Tensor):
            yield thing
        elif isinstance(thing, types.FunctionType):
            waiting += [thing.__closure__, thing.__defaults__]
        else:
            waiting += gc.get_referents(thing)


def held_bytes(*roots: object) -> int:
    """Bytes of the memory behind all these tensors, shared memory once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in reachable_tensors(*roots)}
    return sum(storage.nbytes() for storage in storages.values())


def weight_bytes(*models: nn.Module) -> int:
    """Bytes of the parameters of models, shared ones once."""
    parameters = {id(parameter): parameter for model in models for parameter in model.parameters()}
    return sum(parameter.numel() * parameter.element_size() for parameter in parameters.values())


def test_held_bytes_see_closures_and_count_views_once() -> None:
    memory = torch.zeros(100)
    hidden = torch.zeros(50)
    assert held_bytes([memory[:10], {"a": memory[10:]}], lambda: hidden) == 4 * 150


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"share_encoder": True},
        {"drafter_context": "features"},
        {"drafter_attention": "full", "activation_fn": "relu"},
    ],
)
def test_weights_are_held_once(options: dict[str, Any]) -> None:
    task = make_task(8000)
    sizes = {**BASE, "share_all_embeddings": True}
    verifier = make_transformer(task, 1, ending=False, **sizes)
    drafter = make_drafter(task, 2, verifier=verifier, **{**sizes, **options})
    sample = make_sample(task, [20, 7, 12])
    expected = fairseq_greedy([verifier], task, sample, max_len_b=20)
    on_paper = weight_bytes(verifier, drafter)

    build = lambda: Options("gad", 5).build([verifier], drafter, task)  # noqa: E731
    generator = DraftVerifyGenerator([verifier], task.target_dictionary, build, DecodingStats("gad"), max_len_b=20)
    assert ids(generator.generate([verifier], sample)) == ids(expected)
    method = generator.method
    decoders = [*method.verifier.decoders, method.drafter.decoder.cached]
    caches = sum(x.numel() * x.element_size() for decoder in decoders for x in (decoder.cache, decoder.cross))
    held = held_bytes(method, verifier, drafter)
    assert on_paper < held < 1.1 * (on_paper + caches)
    assert generator.method.verifier.decoders[0].native_layers is not None, "on the kernels"


def test_fused_weights_are_the_modules_own() -> None:
    """Values and names stay; what training changes is what decoding reads, and fusing again makes no new memory."""
    task = make_task(30)
    model = make_transformer(task, 1)
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
    sample = make_sample(task, [3, 5])
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    inputs = sample["net_input"]
    model(inputs["src_tokens"], inputs["src_lengths"], torch.full((2, 4), 5))[0].square().mean().backward()
    optimizer.step()
    assert not torch.equal(attention.k_proj.weight, before["decoder.layers.0.self_attn.k_proj.weight"])
    assert torch.equal(layer.self_qkv[0][16:32], attention.k_proj.weight)


def test_parameters_that_look_into_others_memory_are_left_alone() -> None:
    model = make_transformer(make_task(30), 1)
    attention = model.decoder.layers[0].self_attn
    flat = torch.zeros(2, 16, 16)
    flat[0] = attention.q_proj.weight.data
    attention.q_proj.weight.data = flat[0]
    layer = CachedDecoder(model.decoder, Engine()).layers[0]
    assert attention.q_proj.weight.data_ptr() == flat.data_ptr()
    assert torch.equal(layer.self_qkv[0][:16], flat[0])
    assert torch.equal(layer.self_qkv[0][16:32], attention.k_proj.weight)


@pytest.mark.parametrize("count", [3, 2**18 - 1, 2**18, 2**20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_arrays_are_ordinary_tensors_of_zeros(count: int, dtype: torch.dtype) -> None:
    like = torch.ones(2, dtype=dtype)
    for mode in (torch.inference_mode(), torch.no_grad()):
        with mode:
            made = new_zeros(like, (2, count))
            assert made.shape == (2, count) and made.dtype == dtype and not made.any()
            made += 1
            assert made.sum() == 2 * count and not new_zeros(like, (2, count)).any()


@pytest.mark.skipif(resident("VmRSS") == 0, reason="no /proc")
def test_large_arrays_go_back_to_the_system() -> None:
    """Also those that lie between others which stay."""
    like = torch.zeros(1)
    size = 2**21
    before = resident("VmRSS")
    arrays = [new_zeros(like, (size,)).add_(1) for _ in range(16)]
    assert resident("VmRSS") - before > 15 * 4 * size
    del arrays[::2]
    assert resident("VmRSS") - before < 9 * 4 * size
