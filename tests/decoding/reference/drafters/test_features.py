"""Drafters that read the verifier's states: training equals decoding, and another verifier is refused."""

import math
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.criterions.glat_loss import GlatLoss
from fairseq_plugins.data.block_masking import glance
from fairseq_plugins.decoding import weights
from fairseq_plugins.decoding.checks import check_fit
from fairseq_plugins.decoding.reference.drafters.features import FeatureDrafter
from fairseq_plugins.decoding.reference.drafters.path import DraftOptions
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.decoding.reference.search import GreedySearch
from fairseq_plugins.decoding.reference.search.rules import accept_all
from fairseq_plugins.decoding.reference.state import Draft
from fairseq_plugins.decoding.reference.verifier import Verifier
from fairseq_plugins.errors import ConfigurationError
from tests.data.test_block_masking import make_batch
from tests.errors import error_about, refused
from tests.models.test_block_nat import blocks_for
from tests.strategies import FEATURE_DRAFTERS, TRANSFORMERS, UNSHRUNK, example_count, fitting
from tests.support import Options, make_all, make_drafter, make_sample, make_state, make_task, make_transformer

FEATURES = {"drafter_context": "features"}
VOCABULARY = 30


@settings(UNSHRUNK, max_examples=example_count(25))
@given(
    options=TRANSFORMERS,
    drafter_options=FEATURE_DRAFTERS,
    small_bytes=st.sampled_from([2**22, 0]),
    seed=st.integers(0, 1000),
)
@torch.no_grad()
def test_training_equals_decoding(
    options: dict[str, Any], drafter_options: dict[str, Any], small_bytes: int, seed: int
) -> None:
    """Log-probabilities of a training block equal those of a draft after a verified prefix."""
    drafter_options = {**drafter_options, "transition_rank": 0, "transition_state": 0}  # see test_transition.py
    task = make_task(VOCABULARY)
    verifier = make_transformer(task, seed, **options)
    model = make_drafter(task, seed + 1, block_size=4, verifier=verifier, **fitting(drafter_options, options))
    lengths, sources = [6, 3, 0, 9], [5, 2, 7, 1]
    sample = make_sample(task, sources, seed)
    target, previous = make_batch(lengths)
    blocks = blocks_for(model, target, previous, 4, 3, 4)
    encoder_out = model.encoder(**sample["net_input"])
    features, _ = model._verifier_states(previous, encoder_out)
    logits = model.decoder.output_layer(model.decoder.block_hidden(blocks, encoder_out, features))
    log_probs = logits.log_softmax(-1)

    engine = Engine()
    judge = Verifier([verifier], engine, feature_layers=model.decoder.reader.feature_layers)
    prefixes = blocks.positions[:, blocks.prefix_width :].view(4, 3, 4)[:, :, 0]
    tokens = torch.cat([previous, torch.full((4, 20), 1)], dim=1)
    begin = make_state(tokens, [0] * 4, 25)
    with mock.patch.object(weights, "_SMALL_BYTES", small_bytes):
        drafter = FeatureDrafter(model, 4, engine, DraftOptions(keep_log_probs=True))
    for block in range(3):
        prefix, expected = prefixes[:, block], log_probs.view(4, 3, 4, -1)[:, block]
        drafter.start(sample, judge.start(sample))
        drafted, empty = drafter.draft(begin), prefix == 0
        torch.testing.assert_close(drafted.log_probs[empty], expected[empty], rtol=1e-3, atol=2e-4)
        if empty.all():
            continue
        # The prefix is one accepted draft, without its last token, which is the verifier's own.
        gained = prefix.clamp(min=1)
        draft = Draft(tokens[:, 1 : int(gained.max())], num_drafted=gained - 1)
        advance = GreedySearch(accept_all).advance(begin, draft, judge.verify(begin, draft))
        assert advance.host_emitted == gained.tolist()
        drafter.observe(advance)
        drafted = drafter.draft(make_state(tokens, gained.tolist(), 25))
        torch.testing.assert_close(drafted.log_probs[~empty], expected[~empty], rtol=1e-3, atol=2e-4)


def test_glancing_reveals_the_next_input() -> None:
    target, previous = make_batch([8, 8, 8])
    model = make_drafter(make_task(VOCABULARY), 1, verifier=make_transformer(make_task(VOCABULARY)), **FEATURES)
    blocks = blocks_for(model, target, previous, 4, 2, 4)
    glanced = glance(blocks, torch.zeros_like(blocks.targets), 0.9, 1)
    revealed = (glanced.targets == 1) & (blocks.targets != 1)
    assert revealed.any() and not revealed.view(3, 2, 4)[:, :, -1].any()
    expected = torch.where(revealed.roll(1, 1), blocks.targets.roll(1, 1), blocks.masks)
    assert torch.equal(glanced.masks, expected)
    place = revealed.nonzero()[0]
    position = int(blocks.positions[place[0], blocks.prefix_width + place[1]])
    assert glanced.masks[place[0], place[1] + 1] == target[place[0], position]


@pytest.mark.parametrize("gain", [0.0, 3.0])
def test_loss_by_hand(gain: float) -> None:
    """--position-decay weighs the i-th token exp(-(i-1)/gamma)."""
    task, verifier, sample = make_all(VOCABULARY, 0, [5, 2])
    model = make_drafter(task, 1, verifier=verifier, **FEATURES).eval()
    target, previous = make_batch([6, 3])
    blocks = blocks_for(model, target, previous, 3, 2, 4)
    sample |= {"target": target, "blocks": blocks, "glancing_ratio": 0.0, "ntokens": 11}
    sample["net_input"]["prev_output_tokens"] = previous
    loss, size, logged = GlatLoss(task, 0.0, position_decay=gain)(model, sample)

    output = model(**{name: sample["net_input"][name] for name in ("src_tokens", "src_lengths")}, blocks=blocks)
    assert int(logged["correct"]) == int((output["logits"].argmax(-1) == output["targets"]).sum())
    log_probs = iter(output["logits"].log_softmax(-1))
    expected, weights = 0.0, 0.0
    for row, column in (blocks.targets != 1).nonzero().tolist():
        place = int(blocks.draft_positions[column])
        weight = math.exp(-(place - 1) / gain) if gain else 1.0
        expected -= weight * next(log_probs)[blocks.targets[row, column]]
        weights += weight
    assert float(loss.detach()) == pytest.approx(float(expected), rel=1e-4)
    assert float(size) == pytest.approx(weights, rel=1e-5)


def test_only_own_weights_are_trained_and_saved() -> None:
    task = make_task(VOCABULARY)
    verifier = make_transformer(task, 0)
    model = make_drafter(task, 1, verifier=verifier, **FEATURES).train()
    names = set(model.state_dict())
    assert not [name for name in names if name.startswith(("encoder.", "verifier_decoder."))]
    assert not [name for name in names if "embed_tokens" in name or "output_projection" in name]
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained <= names and "decoder.reader.linear.weight" in trained
    assert not verifier.decoder.training and not verifier.encoder.training and model.decoder.training
    before = {name: value.clone() for name, value in verifier.state_dict().items()}
    again = make_drafter(task, 5, verifier=verifier, **FEATURES)
    again.load_state_dict(model.state_dict())
    assert all(torch.equal(value, before[name]) for name, value in verifier.state_dict().items())
    torch.testing.assert_close(again.decoder.reader.linear.weight, model.decoder.reader.linear.weight)
    other = make_drafter(task, 5, verifier=make_transformer(task, 9), **FEATURES)
    with pytest.raises(ConfigurationError, match="another verifier"):
        other.load_state_dict(model.state_dict())


def test_verifier_tuning_by_hand() -> None:
    """The verifier's loss is added to the drafter's, weighted by token; both train the verifier; both are saved."""
    task = make_task(VOCABULARY)
    verifier = make_transformer(task, 0)
    model = make_drafter(task, 1, verifier=verifier, tune_verifier=True, **FEATURES).train()
    assert verifier.encoder.training and verifier.decoder.training
    model.eval()
    sample = make_sample(task, [5, 2])
    target, previous = make_batch([6, 3])
    blocks = blocks_for(model, target, previous, 3, 2, 4)
    sample |= {"target": target, "blocks": blocks, "glancing_ratio": 0.0, "ntokens": 11}
    sample["net_input"]["prev_output_tokens"] = previous
    alone, size, _ = GlatLoss(task, 0.0, verifier_loss=0.0)(model, sample)
    loss, _, logged = GlatLoss(task, 0.0, verifier_loss=0.5)(model, sample)
    log_probs = verifier(**sample["net_input"])[0].log_softmax(-1)
    own = -log_probs.gather(2, target[:, :, None])[target != 1].sum()
    assert float(logged["verifier_nll"]) == pytest.approx(float(own), rel=1e-4)
    assert float(loss - alone) == pytest.approx(0.5 * size / 11 * float(own), rel=1e-3)

    alone.backward()
    reached = [verifier.encoder.layers[0].fc1.weight, verifier.decoder.layers[1].fc1.weight]
    assert all(weight.grad is not None and weight.grad.any() for weight in reached)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    assert {"encoder.embed_tokens.weight", "verifier_decoder.layers.0.fc1.weight"} <= set(state)
    # A resumed training restores its tuned verifier.
    before = reached[0].clone()
    with torch.no_grad():
        reached[0].add_(1.0)
    model.load_state_dict(state)
    assert torch.equal(reached[0], before)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"transition_rank": -1}, "--transition-rank -1: give 0"),
        ({"transition_rank": 3, "transition_state": -2}, "--transition-state -2: give 0"),
        ({"transition_state": 8}, "--transition-state 8: .* add --transition-rank"),
        ({"transition_rank": 3, "transition_dropout": 1.0}, "--transition-dropout 1.0: give 0"),
        ({"feature_layers": "3"}, "--feature-layers 3.*2 layers"),
        ({"feature_layers": "1,x"}, "--feature-layers 1,x"),
        ({"feature_layers": "-1"}, "--feature-layers -1"),
        ({"drafter_attention": "full"}, "--drafter-attention full"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], match: str) -> None:
    task = make_task(VOCABULARY)
    with refused(match):
        make_drafter(task, verifier=make_transformer(task), **FEATURES, **options)


def test_invalid_use_is_refused() -> None:
    task = make_task(VOCABULARY)
    verifier = make_transformer(task)
    with error_about("--drafter-context", "--drafter-context features.*--verifier-path"):
        make_drafter(task, **FEATURES)
    model = make_drafter(task, verifier=verifier, **FEATURES)
    with error_about("--decoder", "--decoder nat.*--decoder gad"):
        alone = Options("nat")
        check_fit(alone.spec, alone.options, alone.context([verifier], model, task))
    with error_about("--position-decay"):
        GlatLoss(task, 0.1, position_decay=-1.0)
    with error_about("--verifier-loss"):
        GlatLoss(task, 0.1, verifier_loss=-1.0)
    with refused("--tune-verifier.*--drafter-context features"):
        make_drafter(task, tune_verifier=True)
    with refused("--checkpoint-activations: is not for --drafter-context features; leave it out"):
        make_drafter(task, verifier=verifier, checkpoint_activations=True, **FEATURES)
    with refused("--offload-activations: is not for"):
        make_drafter(task, verifier=verifier, offload_activations=True, **FEATURES)
