"""The trained drafter in decoding: its cache changes no draft, also in ragged batches."""

import random
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fairseq_plugins.decoding.reference.drafters.nat import NatDrafter
from fairseq_plugins.decoding.reference.drafters.path import DraftOptions
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.decoding.reference.state import DecodingState, Draft
from fairseq_plugins.models.block_nat import BlockNat
from tests.strategies import DRAFTERS, SEARCHES, SOURCES, TRANSFORMERS, UNSHRUNK, example_count, fitting
from tests.support import (
    Options,
    assert_same_output,
    decode,
    fairseq_greedy,
    ids,
    make_drafter,
    make_sample,
    make_state,
    make_task,
    make_transformer,
)


def fresh_log_probs(
    model: BlockNat, width: int, sample: dict[str, Any], encoder: Any, row: int, known: Tensor
) -> Tensor:
    """Return log-probabilities [width, V] of a drafter without cache, for one sentence without padding.

    `known` [L] are the tokens so far.
    """
    source = sample["net_input"]["src_tokens"][row]
    source = source[source != 1][None]
    net_input = {"src_tokens": source, "src_lengths": torch.tensor([source.size(1)])}
    alone = NatDrafter(model, width, Engine(), DraftOptions(keep_log_probs=True))
    alone.start({"net_input": net_input}, encoder(**net_input))
    alone.num_uncached = known.numel()
    length = known.numel() - 1
    log_probs = alone.draft(make_state(known[None], [length], length + width)).log_probs
    assert log_probs is not None
    return log_probs[0]


class CheckedDrafter(NatDrafter):
    """Checks every draft against a drafter without cache, then mixes in tokens of the known output.

    A random drafter is hardly ever right; with some right tokens sentences advance by different counts.
    """

    def __init__(self, model: BlockNat, block_size: int, outputs: list[list[int]], encoder: Any, seed: int) -> None:
        super().__init__(model, block_size, Engine(), DraftOptions(keep_log_probs=True))
        self.outputs = outputs
        self.verifier_encoder = encoder
        self.generator = random.Random(seed)
        self.sentences: list[int] = []
        self.sample: dict[str, Any] = {}

    def start(self, sample: dict[str, Any], encoder_out: Any) -> None:
        super().start(sample, encoder_out)
        self.sample, self.sentences = sample, list(range(len(self.outputs)))

    def draft(self, state: DecodingState) -> Draft:
        draft = super().draft(state)
        assert draft.tokens.size(1) == max(0, min(self.block_size, state.max_len - state.span.shortest))
        tokens = draft.tokens.clone()
        for row, sentence in enumerate(self.sentences):
            length = state.host_lengths[row]
            if draft.log_probs is not None and self.generator.random() < 0.3:
                known, encoder = state.tokens[row, : length + 1], self.verifier_encoder
                expected = fresh_log_probs(self.model, tokens.size(1), self.sample, encoder, sentence, known)
                torch.testing.assert_close(draft.log_probs[row], expected, rtol=1e-3, atol=2e-4)
            right = self.outputs[sentence][length : length + self.generator.randint(0, tokens.size(1))]
            tokens[row, : len(right)] = torch.tensor(right, dtype=torch.long)
        return Draft(tokens)

    def select_rows(self, rows: Tensor) -> None:
        super().select_rows(rows)
        self.sentences = [self.sentences[row] for row in rows.tolist()]


@settings(UNSHRUNK, max_examples=example_count(40))
@given(
    options=TRANSFORMERS,
    drafter_options=DRAFTERS,
    sources=SOURCES,
    block_size=st.sampled_from([1, 3, 8]),
    search=SEARCHES,
    seed=st.integers(0, 1000),
)
def test_drafts_do_not_depend_on_earlier_iterations(
    options: dict[str, Any],
    drafter_options: dict[str, Any],
    sources: list[int],
    block_size: int,
    search: dict[str, Any],
    seed: int,
) -> None:
    task = make_task(60)
    verifier = make_transformer(task, seed, **options)
    model = make_drafter(task, seed + 1, verifier=verifier, **fitting(drafter_options, options))
    sample = make_sample(task, sources, seed)
    expected = fairseq_greedy([verifier], task, sample, **search)
    drafter = CheckedDrafter(model, block_size, ids(expected), verifier.encoder, seed)
    drafted, stats = decode([verifier], task, sample, drafter, **search)
    assert_same_output(drafted, expected)
    if block_size > 1 and max(sentence.tokens for sentence in stats) > 8:
        assert sum(sentence.iterations for sentence in stats) < sum(sentence.tokens for sentence in stats)


@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("attention", ["prefix-causal", "full"])
@torch.no_grad()
def test_nat_decoder_emits_its_drafts(attention: str, batch_invariant: bool) -> None:
    """`--decoder nat`: blocks follow each other until EOS or the limit, scores are the drafter's."""
    task = make_task(60)
    model = make_drafter(task, 4, block_size=4, drafter_attention=attention)
    sample = make_sample(task, [6, 0, 15])
    engine = Engine(batch_invariant=batch_invariant)
    drafted, stats = decode([model], task, sample, Options("nat"), model, engine=engine, max_len_b=10, min_len=0)
    for row, hypothesis in enumerate(drafted):
        tokens, scores = hypothesis[0]["tokens"], hypothesis[0]["positional_scores"]
        assert tokens[-1] == 2 and 2 not in tokens[:-1] and len(tokens) <= 11
        assert stats[row].iterations == -(-len(tokens) // 4)
        for done in range(0, len(tokens), 4):
            known = torch.cat([torch.tensor([2]), tokens[:done]])
            log_probs = fresh_log_probs(model, min(4, 11 - done), sample, model.encoder, row, known)
            log_probs[:, 1] = -torch.inf
            for position, token in enumerate(tokens[done : done + 4].tolist(), done):
                # The eleventh token must be EOS.
                assert position == 10 or token == int(log_probs[position - done].argmax())
                expected = float(log_probs[position - done, token])
                assert float(scores[position]) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("attention", ["prefix-causal", "full"])
def test_nat_decoder_respects_fairseqs_limits(attention: str) -> None:
    """Output has no pad and an EOS between minimum and maximum length, also of sentences that wait."""
    task = make_task(12)
    sample, lengths = make_sample(task, [6, 0, 15, 3, 9, 1, 2]), set()
    for seed in range(6):
        model = make_drafter(task, seed, block_size=4, drafter_attention=attention)
        # Its most frequent words become EOS and padding.
        free = ids(decode([model], task, sample, Options("nat"), model, max_len_b=9)[0])
        often = [token for token, _ in Counter(token for tokens in free for token in tokens).most_common(3)]
        weight = model.decoder.output_projection.weight.data
        for token, special in zip([token for token in often if token > 2], (2, 1), strict=False):
            weight[[token, special]] = weight[[special, token]]
        search = {"max_len_b": 9, "min_len": 6}
        found, _ = decode([model], task, sample, Options("nat"), model, **search)
        waiting, _ = decode([model], task, sample, Options("nat"), model, active_sentences=2, **search)
        assert ids(waiting) == ids(found)
        for hypothesis in found:
            tokens = hypothesis[0]["tokens"].tolist()
            assert 7 <= len(tokens) <= 10 and tokens[-1] == 2 and not {1, 2} & set(tokens[:-1])
            assert hypothesis[0]["positional_scores"].isfinite().all()
            lengths.add(len(tokens))
    assert len(lengths) > 1
