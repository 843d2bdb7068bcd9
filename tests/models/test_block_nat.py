"""The drafter: training equals decoding, blocks are independent, unsuitable checkpoints are refused."""

from argparse import Namespace
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.models.transformer import base_architecture

from fairseq_plugins.checkpoint.averaging import new_checkpoint
from fairseq_plugins.data.block_masking import Blocks, sample_blocks
from fairseq_plugins.decoding.constraints import Constraints
from fairseq_plugins.decoding.reference.drafters.nat import NatDrafter
from fairseq_plugins.decoding.reference.drafters.path import DraftOptions
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.decoding.reference.state import DecodingState
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.models.block_nat import BlockNat, block_nat_base
from fairseq_plugins.models.block_nat.architectures import block_nat_tiny
from fairseq_plugins.models.fairseq_parts import position_table
from tests.data.test_block_masking import make_batch
from tests.errors import error_about, refused
from tests.support import make_all, make_args, make_drafter, make_sample, make_task, make_transformer

OPTIONS: list[dict[str, Any]] = [
    {},
    {"src_embedding_copy": True},
    {"decoder_learned_pos": True, "layernorm_embedding": True},
    {"decoder_normalize_before": True, "share_encoder": True, "src_embedding_copy": True},
]


def blocks_for(
    model: BlockNat, target: torch.Tensor, previous: torch.Tensor, size: int, count: int, seed: int
) -> Blocks:
    attention, generator = model.decoder.drafter_attention, torch.Generator().manual_seed(seed)
    return sample_blocks(target, previous, size, count, attention, 1, model.decoder.mask_id, generator)


@pytest.mark.parametrize("attention", ["full", "prefix-causal"])
@pytest.mark.parametrize("options", OPTIONS)
@torch.no_grad()
def test_training_equals_decoding(options: dict[str, Any], attention: str) -> None:
    """Logits of training blocks, several in a pass, equal those of a draft after the same prefix, one by one."""
    torch.manual_seed(0)
    task, verifier, sample = make_all(30, 0, [5, 2, 7, 1])
    model = make_drafter(task, 1, block_size=4, drafter_attention=attention, verifier=verifier, **options)
    target, previous = make_batch([6, 3, 0, 9])
    count = 1 if attention == "full" else 3
    blocks = blocks_for(model, target, previous, 4, count, 3)
    encoder_out = model.encoder(**sample["net_input"])
    hidden = model.decoder.block_hidden(blocks, encoder_out)
    logits = model.decoder.output_layer(hidden)
    constraints = Constraints(pad=1, unk=3, eos=2, max_len=15)
    for row, block in product(range(4), range(count)):
        prefix = int(blocks.positions[row, blocks.prefix_width + 4 * block]) - 1
        source = sample["net_input"]["src_tokens"][row : row + 1]
        alone = {"net_input": {"src_tokens": source, "src_lengths": sample["net_input"]["src_lengths"][row : row + 1]}}
        drafter = NatDrafter(model, 4, Engine(), DraftOptions(keep_log_probs=True))
        drafter.start(alone, verifier.encoder(**alone["net_input"]))
        drafter.num_uncached = prefix + 1
        tokens = torch.cat([previous[row : row + 1, : prefix + 1], torch.full((1, 20), 1)], dim=1)
        state = DecodingState(tokens, torch.tensor([prefix]), [prefix], constraints, torch.zeros(tokens.shape))
        draft = drafter.draft(state)
        expected = logits[row, 4 * block : 4 * block + 4]
        torch.testing.assert_close(draft.log_probs[0], expected.log_softmax(-1), rtol=1e-4, atol=5e-5)
        assert torch.equal(draft.tokens[0], expected.argmax(-1))


@torch.no_grad()
def test_source_copy_by_hand() -> None:
    """--src-embedding-copy: target positions attend to positions and embeddings of the source."""
    model = make_drafter(make_task(30), 1, src_embedding_copy=True)
    sample = make_sample(make_task(30), [4, 1])
    encoder_out = model.encoder(**sample["net_input"])
    positions = torch.tensor([[1, 2], [3, 9]])
    table = position_table(model.decoder, 64)
    fed = model.decoder.mask_vectors(positions, encoder_out)
    for row, length in enumerate([5, 2]):
        words = encoder_out["encoder_embedding"][0][row, -length:]
        for column in range(2):
            query = model.decoder.copy_attention(table[positions[row, column]])
            weights = torch.softmax((words + table[:length]) @ query / query.numel() ** 0.5, 0)
            torch.testing.assert_close(fed[row, column], model.decoder.mask_vector + weights @ words)


@torch.no_grad()
def test_source_copy_does_not_depend_on_other_sources() -> None:
    """Also of positions beyond the table, which has a fixed length."""
    task = make_task(30)
    model = make_drafter(task, 1, src_embedding_copy=True, max_target_positions=4)
    fed = []
    for lengths in ([2], [2, 9]):
        encoder_out = model.encoder(**make_sample(task, lengths)["net_input"])
        fed.append(model.decoder.mask_vectors(torch.tensor([[1, 3, 7]]), encoder_out)[0])
    torch.testing.assert_close(fed[0], fed[1])
    assert torch.equal(fed[0][1], fed[0][2]) and not torch.equal(fed[0][0], fed[0][1])


def test_shared_encoder_is_frozen_and_not_in_the_checkpoint() -> None:
    task = make_task(30)
    verifier = make_transformer(task, 0)
    model = make_drafter(task, 1, share_encoder=True, verifier=verifier).train()
    assert model.encoder is verifier.encoder and not model.encoder.training and model.decoder.training
    assert not [name for name in model.state_dict() if name.startswith("encoder.")]
    sample = make_sample(task, [4, 2])
    blocks = blocks_for(model, *make_batch([5, 2]), 3, 2, 0)
    output = model(**sample["net_input"], blocks=blocks, glancing_ratio=0.5)
    output["logits"].sum().backward()
    assert all(parameter.grad is None for parameter in model.encoder.parameters())
    assert all(parameter.grad is not None for parameter in model.decoder.layers.parameters())
    assert model.decoder.mask_vector.grad.abs().sum() > 0


def test_only_the_shared_encoder_or_a_rounded_copy_is_accepted() -> None:
    task = make_task(30)
    state = make_drafter(task, 1, share_encoder=True, verifier=make_transformer(task, 0)).state_dict()
    for verifier in (make_transformer(task, 0), make_transformer(task, 0).half().float()):
        same = make_drafter(task, 2, share_encoder=True, verifier=verifier)
        same.load_state_dict(dict(state))
        assert torch.equal(same.decoder.mask_vector, state["decoder.mask_vector"])
    other = make_drafter(task, 2, share_encoder=True, verifier=make_transformer(task, 7))
    with pytest.raises(ConfigurationError, match="another verifier"):
        other.load_state_dict(dict(state))


def test_sharing_needs_a_verifier_of_the_same_width() -> None:
    task = make_task(30)
    with error_about("--share-encoder", "--encoder-embed-dim 24"):
        make_drafter(task, 1, share_encoder=True, verifier=make_transformer(task, 0, encoder_embed_dim=24))
    with error_about("--share-encoder", "--verifier-path"):
        make_drafter(task, 1, share_encoder=True)


@pytest.mark.parametrize("arch", [block_nat_base, block_nat_tiny])
def test_a_shared_encoder_sets_the_width_that_the_drafter_reads(arch: Callable[[Namespace], None]) -> None:
    task = make_task(30)
    args = make_args(share_encoder=True)
    del args.encoder_embed_dim
    arch(args)
    model = BlockNat.build_model(args, task, verifier=make_transformer(task, 0, encoder_embed_dim=24))
    assert model.args.encoder_embed_dim == model.decoder.layers[0].encoder_attn.kdim == 24


@pytest.mark.parametrize("tuned", [False, True])
def test_layers_that_layerdrop_leaves_have_their_own_context(tuned: bool) -> None:
    task = make_task(30)
    verifier = make_transformer(task, 0, decoder_layerdrop=0.5)
    options = {"drafter_context": "features", "decoder_layers": 3, "decoder_layerdrop": 0.5, "tune_verifier": tuned}
    model = make_drafter(task, 1, block_size=4, verifier=verifier, **options).train()
    layers, contexts = list(model.decoder.layers.children()), {}
    for layer in layers:
        layer.register_forward_pre_hook(
            lambda layer, inputs, named: contexts.update({layer: named["self_attn_mask"].context}), with_kwargs=True
        )
    target, previous = make_batch([6, 3])
    source, sets = make_sample(task, [5, 2])["net_input"], set()
    for seed in range(9):
        contexts.clear()
        model(**source, blocks=blocks_for(model, target, previous, 4, 2, seed))
        features, _ = model._verifier_states(previous, model.encoder(**source))
        expected, _ = model.decoder.reader(features)
        for layer, context in contexts.items():
            torch.testing.assert_close(context, expected[layers.index(layer)].transpose(0, 1))
        sets.add(tuple(contexts))
    assert len(sets) > 3


def test_glancing_counts_the_first_pass() -> None:
    task = make_task(30)
    model = make_drafter(task, 1)
    sample = make_sample(task, [4, 2])
    blocks = blocks_for(model, *make_batch([5, 2]), 3, 2, 0)
    plain = model(**sample["net_input"], blocks=blocks)
    assert int(plain["glanced_total"]) == 0
    assert torch.equal(plain["targets"], blocks.targets[blocks.targets != 1])
    glanced = model(**sample["net_input"], blocks=blocks, glancing_ratio=1.0)
    assert int(glanced["glanced_total"]) == plain["targets"].numel()
    assert int(glanced["glanced_correct"]) == int((plain["logits"].argmax(-1) == plain["targets"]).sum())
    # With ratio 1 the remaining targets are as many as the right predictions.
    assert glanced["targets"].numel() == int(glanced["glanced_correct"])


def test_a_drafter_trains_in_bfloat16() -> None:
    task = make_task(30)
    model = make_drafter(task, 1, src_embedding_copy=True).train().bfloat16()
    blocks = blocks_for(model, *make_batch([5, 2]), 3, 2, 0)
    output = model(**make_sample(task, [4, 2])["net_input"], blocks=blocks, glancing_ratio=0.5)
    output["logits"].float().logsumexp(-1).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def save_checkpoint(path: Path, args: Namespace, model: torch.nn.Module) -> None:
    """Write a checkpoint as fairseq-train does."""
    torch.save(new_checkpoint(model.state_dict(), cfg={"model": args, "task": {"_name": "translation"}}), path)


@pytest.mark.parametrize("context", ["tokens", "features"])
@pytest.mark.parametrize(
    "shape",
    [
        {"decoder_attention_heads": 2, "encoder_attention_heads": 2, "activation_fn": "gelu", "dropout": 0.3},
        {"decoder_ffn_embed_dim": 40, "encoder_ffn_embed_dim": 12, "activation_fn": "relu"},
        {"decoder_normalize_before": True, "encoder_normalize_before": True, "attention_dropout": 0.2},
    ],
)
def test_default_sizes_are_those_of_the_verifier(context: str, shape: dict[str, Any], tmp_path: Path) -> None:
    task, path = make_task(30), tmp_path / "base.pt"
    options = make_args(arch="transformer", _name="transformer", **shape)
    base_architecture(options)
    verifier = make_transformer(task, 4, ending=False, **shape)
    save_checkpoint(path, options, verifier)
    args = Namespace(drafter_context=context, init_decoder_from=str(path), decoder_layers=1)
    args.max_source_positions = args.max_target_positions = 64
    if context == "tokens":
        args.init_encoder_from = str(path)
    block_nat_base(args)
    model = BlockNat.build_model(args, task, verifier=verifier)
    ours, theirs = model.decoder.layers[0], verifier.decoder.layers[0]
    assert ours.self_attn.num_heads == ours.encoder_attn.num_heads == theirs.self_attn.num_heads
    assert ours.normalize_before == theirs.normalize_before and ours.activation_fn is theirs.activation_fn
    assert ours.dropout_module.p == theirs.dropout_module.p
    assert ours.self_attn.dropout_module.p == theirs.self_attn.dropout_module.p
    copied, own = theirs.state_dict(), ours.state_dict()
    assert all(torch.equal(own[name], value) for name, value in copied.items())
    if context == "tokens":
        assert torch.equal(model.encoder.layers[1].fc1.weight, verifier.encoder.layers[1].fc1.weight)


def test_given_sizes_are_kept_without_copied_layers() -> None:
    task = make_task(30)
    given = {"decoder_attention_heads": 8, "decoder_ffn_embed_dim": 10, "dropout": 0.25}
    model = BlockNat.build_model(Namespace(drafter_context="features", **given), task, verifier=make_transformer(task))
    layer = model.decoder.layers[0]
    assert layer.self_attn.num_heads == 8 and layer.fc1.out_features == 10 and layer.dropout_module.p == 0.25


@pytest.mark.parametrize(("theirs", "ours"), [(3, 1), (1, 3)])
def test_initial_decoder_of_a_drafter_of_another_depth(tmp_path: Path, theirs: int, ours: int) -> None:
    """Copies the first layers, with their part of the reader and that of the input."""
    task, path = make_task(30), tmp_path / "drafter.pt"
    options = {"drafter_context": "features", "feature_layers": "0,2", "activation_fn": "relu"}
    copied = make_drafter(task, 1, block_size=4, verifier=make_transformer(task, 0), decoder_layers=theirs, **options)
    save_checkpoint(path, make_args(arch="block_nat", _name="block_nat", **options), copied)
    args = make_args(block_size=4, init_decoder_from=str(path), **{**options, "decoder_layers": ours})
    model = BlockNat.build_model(args, task, verifier=make_transformer(task, 7))
    features = torch.randn(2, 3, 32)
    contexts, added = model.decoder.reader(features)
    their_contexts, their_added = copied.decoder.reader(features)
    assert torch.equal(contexts[:1], their_contexts[:1]) and torch.equal(added, their_added)
    assert torch.equal(model.decoder.layers[0].fc1.weight, copied.decoder.layers[0].fc1.weight)
    if ours > theirs:  # the other layers begin as those of a new drafter
        own = BlockNat.build_model(
            make_args(**{**options, "decoder_layers": ours}), task, verifier=make_transformer(task, 7)
        )
        assert torch.equal(contexts[1:], own.decoder.reader(features)[0][1:])


@pytest.mark.parametrize(
    ("copied", "ours", "message"),
    [
        ({"feature_layers": "0,1,2"}, {"feature_layers": "0,2"}, "--feature-layers 0,2: .* has 0,1,2, .* 0,1,2$"),
        ({"feature_layers": "0,1,2"}, {"decoder_layers": 1}, "--feature-layers 0,2: .* has 0,1,2, .* 0,1,2$"),
        ({"transition_rank": 2}, {"transition_rank": 3}, "--transition-rank 3: .* give --transition-rank 2"),
        ({"transition_rank": 2, "transition_state": 4}, {"transition_rank": 2, "transition_state": 5}, "-state 5: "),
        ({"decoder_learned_pos": True}, {"decoder_learned_pos": True, "max_target_positions": 9}, "-positions 9: .*64"),
    ],
)
def test_decoder_of_other_sizes(tmp_path: Path, copied: dict[str, Any], ours: dict[str, Any], message: str) -> None:
    task, path = make_task(30), tmp_path / "drafter.pt"
    common, verifier = {"drafter_context": "features", "activation_fn": "relu"}, make_transformer(task, 0)
    options = make_args(arch="block_nat", _name="block_nat", **common, **copied)
    save_checkpoint(path, options, BlockNat.build_model(options, task, verifier=verifier))
    args = make_args(block_size=4, init_decoder_from=str(path), **{**common, **ours})
    with refused(message):
        BlockNat.build_model(args, task, verifier=verifier)


def test_initial_decoder_of_a_drafter_of_another_verifier(tmp_path: Path) -> None:
    task, path = make_task(30), tmp_path / "drafter.pt"
    options = {"drafter_context": "features", "transition_rank": 2, "activation_fn": "relu"}
    before = make_drafter(task, 1, block_size=9, verifier=make_transformer(task, 0), **options)
    before.decoder.survival_counts += 1
    before.decoder.target_counts += 1
    save_checkpoint(path, make_args(arch="block_nat", _name="block_nat", **options), before)
    verifier = make_transformer(task, 7)
    args = make_args(block_size=4, init_decoder_from=str(path), **options)
    model = BlockNat.build_model(args, task, verifier=verifier)
    own = model.state_dict()
    kept = {name for name, value in before.state_dict().items() if torch.equal(own[name], value)}
    counts = {"decoder.survival_counts", "decoder.target_counts"}
    assert set(own) - kept == {"decoder.verifier_fingerprint", "decoder.trained_block_size", *counts}
    assert int(model.decoder.trained_block_size) == 4 and not any(own[name].any() for name in counts)
    assert torch.equal(model.decoder.embed_tokens.weight, verifier.decoder.embed_tokens.weight)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoder_ffn_embed_dim": 32}, "--encoder-ffn-embed-dim 32: --init-encoder-from .* has 24"),
        ({"encoder_attention_heads": 1}, "--encoder-attention-heads 1: --init-encoder-from .* has 4"),
        ({"activation_fn": "gelu"}, "or give --activation-fn relu"),
    ],
)
def test_unsuitable_initial_encoder_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    task, path = make_task(30), tmp_path / "base.pt"
    given = make_args(arch="transformer", _name="transformer")
    base_architecture(given)
    save_checkpoint(path, given, make_transformer(task, 4, ending=False))
    args = make_args(block_size=4, init_encoder_from=str(path), **options)
    block_nat_base(args)
    with refused(message):
        BlockNat.build_model(args, task)


def test_weights_of_another_kind_of_model_are_refused() -> None:
    """Those of --save-dir, --restore-file and --finetune-from-model."""
    task = make_task(30)
    model, longer = (make_drafter(task, block_size=size) for size in (4, 6))
    with pytest.raises(RuntimeError, match="trained with --block-size 6, not 4; --init-decoder-from would start"):
        model.load_state_dict(longer.state_dict())
    with pytest.raises(
        RuntimeError,
        match="it is no drafter, or one from before version 0.1; --init-decoder-from would start from its weights",
    ):
        model.load_state_dict(make_transformer(task).state_dict())
