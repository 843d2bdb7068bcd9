"""What the kernels do once for the sources of a batch: what PyTorch does, and nothing with what does not fit."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fairseq_plugins.decoding.engine.encoder import FusedEncoder
from fairseq_plugins.decoding.engine.engine import make_engine
from fairseq_plugins.decoding.engine.native import build
from fairseq_plugins.decoding.engine.native.kernels import Kernels
from fairseq_plugins.decoding.engine.native.source import NativeLinears, encode
from tests.decoding.engine.random_steps import Sizes, random_ends, random_layers, random_linear
from tests.strategies import SOURCES, STEADY_MODELS, TRANSFORMERS, some
from tests.support import make_drafter, make_sample, make_task, make_transformer

pytestmark = pytest.mark.skipif(build.library() is None, reason="no C++ compiler")


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    kernels = Kernels.build()
    assert kernels is not None
    return kernels


@settings(STEADY_MODELS, max_examples=some(20))
@given(options=TRANSFORMERS, sources=SOURCES, seed=st.integers(0, 500))
@torch.no_grad()
def test_a_sentence_is_encoded_as_by_itself(options: dict[str, Any], sources: list[int], seed: int) -> None:
    """To the last bit: whatever else is in the batch, wherever its padding stands, with one thread and with several."""
    task = make_task(30)
    model = make_transformer(task, seed, ending=False, **{**options, "activation_fn": "gelu"})
    encoder = FusedEncoder(model.encoder, make_engine())
    assert encoder.native_layers is not None
    tokens = make_sample(task, sources, seed)["net_input"]["src_tokens"]
    pad = task.source_dictionary.pad()
    torch.set_num_threads(1)
    together = encode(encoder.native_layers, tokens, pad)
    assert torch.equal(together[2], tokens == pad)
    assert not together[1][together[2]].any()
    torch.set_num_threads(3)
    moved = torch.stack([torch.cat([row[row != pad], row[row == pad]]) for row in tokens])
    other = encode(encoder.native_layers, moved, pad)
    for here, there in zip(together[:2], other[:2], strict=True):
        assert torch.equal(here[tokens != pad], there[moved != pad])
    for row, encoded in zip(tokens, together[1], strict=True):
        alone = encode(encoder.native_layers, row[row != pad][None], pad)[1][0]
        assert torch.equal(alone, encoded[row != pad])


def test_rows_are_shared_among_threads(kernels: Kernels) -> None:
    sizes = Sizes(layers=2, heads=4, width=128, wide=512, vocabulary=300)
    native = kernels.layers(random_layers(sizes, has_cross=False), ends=random_ends(sizes))
    tokens = torch.randint(4, 300, (16, 20))
    linears = NativeLinears([kernels.compiled_linear(random_linear(128, 256)) for _ in range(3)])
    results = []
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        encoded, projected = encode(native, tokens, 1)[1], torch.empty(3, 16, 20, 256)
        linears(encoded, projected)
        results.append((encoded, projected))
    for result in results[1:]:
        assert all(map(torch.equal, result, results[0]))


@settings(STEADY_MODELS, max_examples=some(20))
@given(learned=st.booleans(), sources=SOURCES, count=st.integers(1, 90), seed=st.integers(0, 500))
@torch.no_grad()
def test_masks_are_fed_what_training_feeds_them(learned: bool, sources: list[int], count: int, seed: int) -> None:
    task = make_task(30)
    options = {"decoder_learned_pos": True, "max_target_positions": 64} if learned else {}
    decoder = make_drafter(task, seed, src_embedding_copy=True, **options).decoder
    torch.nn.init.normal_(decoder.mask_vector)
    model = make_drafter(task, seed, src_embedding_copy=True)
    encoder_out = model.encoder.forward_torchscript(make_sample(task, sources, seed)["net_input"])
    padding = encoder_out["encoder_padding_mask"][0]
    copy = make_engine().kernels.source_copy(decoder)
    for positions in (count, 2 * count):
        expected = decoder.mask_vectors(torch.arange(positions).expand(len(sources), -1), encoder_out)
        ours = copy(positions, encoder_out["encoder_embedding"][0], padding)
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("token", [-1, 30, 2**40])
def test_unknown_tokens_are_refused(token: int) -> None:
    task = make_task(30)
    encoder = FusedEncoder(make_transformer(task, 1).encoder, make_engine())
    tokens = make_sample(task, [3, 5])["net_input"]["src_tokens"]
    tokens[1, 2] = token
    with pytest.raises(ValueError, match="outside of the vocabulary"):
        encoder({"src_tokens": tokens})


def test_layers_of_a_decoder_encode_nothing(kernels: Kernels) -> None:
    layers = kernels.layers(random_layers(Sizes()), ends=random_ends(Sizes()))
    with pytest.raises(ValueError, match="not the layers of an encoder"):
        encode(layers, torch.zeros(1, 2, dtype=torch.long), 1)


@pytest.mark.parametrize(
    ("x", "to"),
    [
        (torch.zeros(3, 5), torch.zeros(2, 3, 7)),
        (torch.zeros(3, 4), torch.zeros(2, 3, 6)),
        (torch.zeros(3, 4), torch.zeros(1, 3, 7)),
        (torch.zeros(3, 4).double(), torch.zeros(2, 3, 7)),
        (torch.zeros(3, 4), torch.zeros(2, 3, 7).double()),
        (torch.zeros(3, 4), torch.zeros(2, 7, 3).transpose(1, 2)),
    ],
)
def test_what_linear_layers_read_and_write_must_fit(kernels: Kernels, x: Tensor, to: Tensor) -> None:
    linears = NativeLinears([kernels.compiled_linear(random_linear(4, 7)) for _ in range(2)])
    with pytest.raises(ValueError, match="kernels: "):
        linears(x, to)


def test_linear_layers_of_different_sizes_are_refused(kernels: Kernels) -> None:
    with pytest.raises(ValueError, match="different sizes"):
        NativeLinears([kernels.compiled_linear(random_linear(4, outputs)) for outputs in (7, 8)])
