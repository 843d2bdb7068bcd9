"""`--decoder nat`: a trained drafter that decodes alone."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from fairseq_plugins.decoding.reference.drafters.nat import NatDrafter
from fairseq_plugins.decoding.reference.drafters.path import DraftOptions
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.models.block_nat import BlockNat
from tests.support import Options, decode, ids, make_drafter, make_sample, make_state, make_task


def fresh_scores(model: BlockNat, width: int, sample: dict[str, Any], encoder: Any, row: int, known: Tensor) -> Tensor:
    """Return log-probabilities [width, V] of a drafter without cache, for one sentence after `known` tokens [L]."""
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
            log_probs = fresh_scores(model, min(4, 11 - done), sample, model.encoder, row, known)
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
