"""The image model: similar intensities and positions have similar embeddings before training."""

from argparse import Namespace

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary

from fairseq_plugins.errors import ConfigurationError
from tests.errors import error_about
from tests.support import Options, assert_same_output, decode, fairseq_greedy, make_args, make_sample, make_task
from train_scripts.super_resolution import ImageTransformer, image_transformer
from train_scripts.tools.super_resolution import draw_patches, photographs, psnr


def make_numbers() -> Dictionary:
    dictionary = Dictionary()
    for value in range(256):
        dictionary.add_symbol(str(value))
    return dictionary


def build(size: int | None = 16, **options: int) -> tuple:
    task = make_task(4)
    task.src_dict = task.tgt_dict = make_numbers()
    sizes = {"max_source_positions": 256, "max_target_positions": 800, "image_size": size}
    args = make_args(**{"encoder_embed_dim": 32, "decoder_embed_dim": 32, **sizes, **options})
    image_transformer(args)
    torch.manual_seed(0)
    return task, ImageTransformer.build_model(args, task).eval()


def test_untrained_model_enlarges_its_input() -> None:
    """Given the earlier pixels, an untrained model predicts about the input's intensity at the next position."""
    values = {"embed_dim": 64, "attention_heads": 4, "normalize_before": True}
    of_both = {f"{part}_{name}": value for part in ("encoder", "decoder") for name, value in values.items()}
    task, model = build(**of_both)
    high, low = draw_patches(photographs(), "train", 8, 16, np.random.default_rng(0))
    index = torch.tensor([task.target_dictionary.index(str(value)) for value in range(256)])
    end = torch.full((8, 1), task.target_dictionary.eos())
    source = torch.cat([index[low.reshape(8, -1).astype(int)], end], dim=1)
    before = torch.cat([end, index[high.reshape(8, -1).astype(int)][:, :-1]], dim=1)

    def closeness() -> float:
        with torch.no_grad():
            scores = model(source, torch.full((8,), source.size(1)), before)[0][..., index]
        predicted = scores.argmax(-1).numpy().astype(np.uint8).reshape(high.shape)
        return psnr(predicted, low.repeat(2, axis=1).repeat(2, axis=2))

    begun = closeness()
    torch.manual_seed(1)
    for projection in (model.decoder.layers[0].encoder_attn.q_proj, model.decoder.layers[0].encoder_attn.out_proj):
        torch.nn.init.xavier_uniform_(projection.weight)
    assert begun > 17 and begun > closeness() + 2


def test_decodes_with_our_decoders() -> None:
    task, model = build()
    sample = make_sample(task, [192, 192])
    expected = fairseq_greedy([model], task, sample, max_len_b=40, min_len=40)
    drafted, _ = decode([model], task, sample, Options("jacobi"), max_len_b=40, min_len=40)
    assert_same_output(drafted, expected)


def test_invalid_options_are_refused() -> None:
    with error_about("--image-size", "give at least 8"):
        build(None)
    with error_about("--encoder-embed-dim"):
        build(encoder_embed_dim=8, decoder_embed_dim=8)
    task = make_task(30)
    args = Namespace(**vars(make_args(image_size=8)))
    with pytest.raises(ConfigurationError, match="no numbers"):
        ImageTransformer.build_model(args, task)
