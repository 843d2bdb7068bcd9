"""The blockwise model: sizes and weights of its base, and refusals."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_plugins.checkpoint.loading import build_model, read_checkpoint
from fairseq_plugins.models.blockwise_transformer import BlockwiseTransformer, blockwise_transformer
from fairseq_plugins.tasks.options import SpecDecConfig
from fairseq_plugins.tasks.spec_dec import SpecDecTask
from tests.conftest import Corpus
from tests.errors import error_about
from tests.support import make_sample


def make_task(data: Path, **options: Any) -> SpecDecTask:
    return SpecDecTask.setup_task(SpecDecConfig(data=str(data), source_lang="src", target_lang="tgt", **options))


def build(task: SpecDecTask, **options: Any) -> BlockwiseTransformer:
    args = Namespace(**options)
    blockwise_transformer(args)
    return BlockwiseTransformer.build_model(args, task)


@pytest.mark.parametrize("identity", [True, False])
def test_new_heads_predict_as_the_base(corpus: Corpus, identity: bool) -> None:
    """Sizes and weights come from the base; new heads give its own prediction."""
    task, path = make_task(corpus.data), str(corpus.verifier)
    model = build(task, base_path=path, blockwise_heads=3, identity_first_head=identity).eval()
    assert len(model.decoder.layers) == 1 and model.decoder.heads == 3
    # One hidden layer of k x d_hidden and an output of k x d_model (section 6).
    assert model.decoder.head_expand.weight.shape == (3 * 48, 32)
    assert model.decoder.head_shrink.weight.shape == (3 * 32, 3 * 48)
    sample = make_sample(task, [3, 5])
    net_input = {**sample["net_input"], "prev_output_tokens": torch.tensor([[2, 4, 5], [2, 7, 8]])}
    expected = build_model(*read_checkpoint(path, "--path"), path, task, "--path")(**net_input)[0]
    torch.testing.assert_close(model(**net_input)[0], expected)
    for scores in model(**net_input, heads=[1, 2, 3]):
        torch.testing.assert_close(scores, expected)


def test_heads_for_a_model_of_fairseq_hydra_train(corpus: Corpus, tmp_path: Path) -> None:
    """Its checkpoint has a configuration, with the sizes of encoder and decoder in groups."""
    state = torch.load(corpus.verifier, weights_only=False)
    options = vars(state["cfg"]["model"])
    sizes = ("embed_dim", "ffn_embed_dim", "layers", "attention_heads")
    parts = {part: {size: options[f"{part}_{size}"] for size in sizes} for part in ("encoder", "decoder")}
    others = {name: options[name] for name in options if name.startswith(("share", "max_"))}
    state["cfg"]["model"] = {"_name": "transformer", "encoder_embed_dim": 512, **others, **parts}
    torch.save(state, tmp_path / "hydra.pt")
    model = build(make_task(corpus.data), base_path=str(tmp_path / "hydra.pt"))
    assert model.decoder.embed_dim == model.encoder.layers[0].embed_dim == 32


def test_number_of_heads(corpus: Corpus) -> None:
    path = str(corpus.verifier)
    assert build(make_task(corpus.data), base_path=path).decoder.heads == 4
    assert build(make_task(corpus.data, block_size=6), base_path=path).decoder.heads == 6
    with error_about("--blockwise-heads", "give at least 2"):
        build(make_task(corpus.data), base_path=path, blockwise_heads=1)


def test_unsuitable_bases_are_refused(corpus: Corpus, tmp_path: Path) -> None:
    task = make_task(corpus.data)
    with error_about("--base-path", "none.pt: no such file"):
        build(task, base_path=str(tmp_path / "none.pt"))
    with error_about("--base-path", "do not fit"):
        build(task, base_path=str(corpus.drafter))
    task.tgt_dict.add_symbol("another")
    with error_about("--base-path", "do not fit"):
        build(task, base_path=str(corpus.verifier))
