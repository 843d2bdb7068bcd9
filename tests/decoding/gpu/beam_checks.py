"""Checks of beam search of the GPU engine in Triton's interpreter, against fairseq and the compiled kernels."""

import copy
import math
import re
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from fairseq_plugins.decoding.constraints import Constraints
from fairseq_plugins.decoding.decoded import Hypothesis
from fairseq_plugins.decoding.gpu import batch, beam_search, runner
from fairseq_plugins.decoding.gpu import interface as gpu
from fairseq_plugins.decoding.gpu.backend import GpuBackend
from fairseq_plugins.decoding.gpu.kernels import hypotheses as kernels
from fairseq_plugins.decoding.gpu.kernels.arguments import Places
from fairseq_plugins.decoding.gpu.model import GpuWeights
from fairseq_plugins.decoding.gpu.vocabulary import make_scores
from fairseq_plugins.decoding.native.backend import NativeBackend
from fairseq_plugins.decoding.suppression import SuppressedTokens
from fairseq_plugins.errors import ConfigurationError
from tests.strategies import UNSHRUNK, example_count
from tests.support import SMALL, Options, fairseq_beam, make_sample, make_task, make_transformer

# Two tiles of the vocabulary.
WORDS = 70
TASK = make_task(WORDS)
PAD, EOS, UNK = 1, 2, 3

# Half of the words, and others at the beginning; some are left in any case.
SUPPRESSED = SuppressedTokens(tuple(range(6, 68, 2)), (4, *range(7, 67, 4)))


def limits(**given: Any) -> Constraints:
    return Constraints(pad=PAD, unk=UNK, eos=EOS, **given)


def backend(
    module: type[GpuBackend] | type[NativeBackend], model: nn.Module, beam: int, temperature: float = 1.0, **how: int
) -> GpuBackend | NativeBackend:
    context = Options("fast-beam").context([model], None, TASK, temperature=temperature, beam=beam)
    return module(Options("fast-beam").spec, Options("fast-beam").options, context, **how)


def compare(
    model: nn.Module, sample: dict[str, Any], beam: int, constraints: Constraints, temperature: float = 1.0,
    places: int = 2,
) -> list[list[Hypothesis]]:  # fmt: skip
    """Compare hypotheses, their order and the numbers of steps with the compiled kernels'; return the hypotheses.

    Returns none where both say that nothing may end.
    """
    own = backend(GpuBackend, model, beam, temperature, active_sentences=places)
    try:
        expected = backend(NativeBackend, model, beam, temperature).decode(sample, constraints, EOS)
    except ConfigurationError as error:
        with pytest.raises(ConfigurationError, match=re.escape(str(error))):
            own.decode(sample, constraints, EOS)
        return []
    result = own.decode(sample, constraints, EOS)
    assert result.emitted == expected.emitted
    same_hypotheses(result.outputs, expected.outputs, 1e-4)
    return result.outputs


def same_hypotheses(ours: list[list[Hypothesis]], others: list[list[Hypothesis]], tolerance: float) -> None:
    for own, other in zip(ours, others, strict=True):
        assert [mine.tokens.tolist() for mine in own] == [its.tokens.tolist() for its in other]
        for mine, its in zip(own, other, strict=True):
            torch.testing.assert_close(mine.log_probs, its.log_probs, rtol=0, atol=tolerance)
            torch.testing.assert_close(mine.score, its.score, rtol=0, atol=tolerance)


def check_fairseq() -> None:
    """Token ids and scores of all hypotheses, where one sentence waits for a free place."""
    model = make_transformer(TASK, 1, **SMALL)
    sample = make_sample(TASK, [3, 5, 2])
    expected = fairseq_beam([model], TASK, sample, 3, max_len_b=5, normalize_scores=False)
    result = compare(model, sample, 3, limits(max_len=5))
    for own, other in zip(result, expected, strict=True):
        own.sort(key=lambda hypothesis: -float(hypothesis.score))
        their = [Hypothesis(its["tokens"], its["positional_scores"], its["score"]) for its in other]
        same_hypotheses([own], [their], 1e-4)


@settings(UNSHRUNK, max_examples=example_count(4))
@given(
    options=st.sampled_from(
        [
            {},
            {"encoder_normalize_before": True, "decoder_normalize_before": True},
            {"activation_fn": "gelu", "layernorm_embedding": True, "decoder_learned_pos": True},
        ]
    ),
    beam=st.sampled_from([1, 2, 4, 5]),
    search=st.fixed_dictionaries(
        {
            "max_len": st.integers(3, 6),
            "min_len": st.sampled_from([0, 1, 3]),
            "unk_penalty": st.sampled_from([0.0, 1.5, -2.0]),
            "suppressed": st.sampled_from([SuppressedTokens(), SUPPRESSED]),
        }
    ),
    temperature=st.sampled_from([1.0, 1.7]),
    prefix=st.sampled_from([None, [[5, 6, 1], [7, 1, 1]], [[5, 6, 8], [7, 2, 1]]]),
    bias=st.sampled_from(["own", "own", "few", "equal"]),
    seed=st.integers(0, 100),
)
# More hypotheses end than are wanted, before the maximum length.
@example({}, 5, {"max_len": 4, "min_len": 0, "unk_penalty": 0.0}, 1.0, None, "own", 17)
@example({}, 4, {"max_len": 2, "min_len": 0, "unk_penalty": 0.0}, 1.0, None, "equal", 5)
def check_searches(
    options: dict[str, Any], beam: int, search: dict[str, Any], temperature: float, prefix: Any, bias: str, seed: int
) -> None:  # fmt: skip
    """Limits of fairseq; models that leave fewer tokens than a beam needs; equal scores of tokens and of parents."""
    model = make_transformer(TASK, seed, **SMALL, **options)
    projection = model.decoder.output_projection
    if bias == "few":
        values = torch.full((WORDS,), -torch.inf)
        values[[EOS, 5, 68]] = 0
        projection.bias = nn.Parameter(values)
    elif bias == "equal":
        # Sums of two log-probabilities do not depend on their order; those of three do.
        search = {**search, "max_len": max(2, search["min_len"])}
        nn.init.zeros_(projection.weight)
        generator = torch.Generator().manual_seed(seed)
        projection.bias = nn.Parameter(torch.randint(0, 3, (WORDS,), generator=generator) / 2)
    sample = make_sample(TASK, [3, 5], seed)
    given = None if prefix is None else torch.tensor(prefix)
    compare(model, sample, beam, limits(**search, prefix=given), temperature)


def check_wide_beam() -> None:
    """More hypotheses than a tile of rows has."""
    compare(make_transformer(TASK, 4, **SMALL), make_sample(TASK, [1]), 17, limits(max_len=1), places=1)


def check_merging() -> None:
    """The best of a row from lists of its tiles, which are shorter than what is wanted."""
    rows, tiles, kept, beam = 4, 5, 4, 6
    scores = torch.randint(0, 5, (rows, tiles, 8), generator=torch.Generator().manual_seed(1)).float()
    scores[1, :, :6], scores[2, 1:] = -torch.inf, -torch.inf
    best = scores.sort(dim=2, descending=True, stable=True)
    tokens = (best.indices + 8 * torch.arange(tiles)[:, None])[..., :kept].int().contiguous()
    peaks, sums = torch.zeros(rows, tiles), torch.ones(rows, tiles)
    only, watched = torch.tensor([-1, -1, -1, 9], dtype=torch.int32), torch.full((rows,), 0.5)
    found, their_tokens = torch.zeros(rows, 2 * beam), torch.zeros(rows, 2 * beam, dtype=torch.int32)
    normalizers = torch.zeros(rows)
    places = Places(*[None] * len(Places._fields))._replace(active=torch.ones(1, dtype=torch.int32))
    of_tiles = make_scores(rows, 40, 16, kept, torch.device("cpu"))._replace(
        best_scores=best.values[..., :kept].contiguous(), best_tokens=tokens, peaks=peaks, sums=sums, only=only,
        watched_scores=watched, normalizer=normalizers, tiles=tiles,
    )  # fmt: skip
    kernels.best_continuations[(rows,)](
        places, of_tiles, found, their_tokens, BEAM=beam, BEST=kept, COUNT=2 * beam, RANKS=16, TILES=8, PDL=False
    )
    torch.testing.assert_close(normalizers, torch.full((rows,), math.log(tiles)))
    for row in range(3):
        lists = zip(best.values[row, :, :kept].flatten().tolist(), tokens[row].flatten().tolist(), strict=True)
        expected = sorted(((-score, token) for score, token in lists if score > -math.inf))[: 2 * beam]
        count = len(expected)
        assert list(zip((-found[row, :count]).tolist(), their_tokens[row, :count].tolist(), strict=True)) == expected
        assert (found[row, count:] == -torch.inf).all() and count == (12, 10, 4)[row]
    assert found[3].tolist() == [0.5, *[-math.inf] * 11] and their_tokens[3, 0] == 9


def check_errors() -> None:
    model = make_transformer(TASK, 1, **SMALL)
    sample = make_sample(TASK, [3, 2])
    weights = GpuWeights(device=torch.device("cpu"))
    with pytest.raises(ValueError, match="too wide"):
        gpu.Generator(encoder=weights.encoder(model.encoder), verifier=weights.decoder(model.decoder), beam=35)
    # One hypothesis ends, and no other can.
    assert not compare(model, sample, 3, limits(max_len=3, prefix=torch.tensor([[EOS], [7]])))
    nn.init.constant_(model.decoder.output_projection.weight, torch.nan)
    with pytest.raises(RuntimeError, match="not numbers"):
        backend(GpuBackend, model, 2).decode(sample, limits(max_len=4), EOS)


def check_half_precision() -> None:
    """The hypotheses of the same weights in fp32, for a sentence alone and in a batch."""
    model = make_transformer(TASK, 3, **SMALL).half()
    samples = make_sample(TASK, [3, 6]), make_sample(TASK, [3, 6])
    samples[1]["net_input"]["src_tokens"] = samples[0]["net_input"]["src_tokens"][1:]
    how = {"beam": 3, "active_sentences": 2}
    expected = backend(GpuBackend, copy.deepcopy(model).float(), **how).decode(samples[0], limits(max_len=3), EOS)
    own = backend(GpuBackend, model, **how)
    together, alone = (own.decode(sample, limits(max_len=3), EOS).outputs for sample in samples)
    same_hypotheses(together, expected.outputs, 0.02)
    same_hypotheses(alone, together[1:], 1e-3)


def prepare() -> None:
    """Short outputs take several tiles and parts."""
    beam_search._COLUMNS, runner._SLOTS_OF_BEAMS = 4, 16
    runner.PART_OF_BEAMS = batch.PART_OF_BEAMS = 16
