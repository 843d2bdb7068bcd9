"""Admission and removal of rows: every sentence keeps its tokens; verifier and drafter have the same rows."""

from collections import Counter
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding.constraints import Constraints
from fairseq_plugins.decoding.method import Method
from fairseq_plugins.decoding.reference.batch import Batch
from fairseq_plugins.decoding.reference.layout import Span
from fairseq_plugins.decoding.reference.search import GreedySearch
from fairseq_plugins.decoding.reference.state import Advance, Draft, Verification
from tests.strategies import DETERMINISTIC, example_count

PAD, EOS, BEGIN = 1, 2, 9
EMITTED = st.lists(st.integers(4, 60), min_size=1, max_size=3)


class Follower:
    """Replaces verifier and drafter: records its sentences, by the first word of their sources."""

    def __init__(self) -> None:
        self.sentences: list[int] = []
        self.samples: list[dict[str, Any]] = []

    def start(self, sample: dict[str, Any], encoder_out: Any = None) -> str:
        self.sentences = []
        return self.append_rows(sample, encoder_out)

    def append_rows(self, sample: dict[str, Any], encoder_out: Any = None) -> str:
        source = sample["net_input"]["src_tokens"]
        assert (source != PAD).sum(1).tolist() == sample["net_input"]["src_lengths"].tolist()
        # Padding is on the left, and the first word of a sentence is its number.
        self.sentences += [next(token for token in row if token != PAD) - 10 for row in source.tolist()]
        assert [drafts[0][0] - 10 for drafts in sample["drafts"]] == self.sentences[-len(source) :]
        self.samples.append(sample)
        return "encoder output"

    def select_rows(self, rows: torch.Tensor) -> None:
        self.sentences = [self.sentences[row] for row in rows.tolist()]


def make_batch(lengths: list[int], active: int) -> tuple[Batch, Method]:
    """Return sources with these numbers of words; the first word is 10 plus the number of the sentence."""
    width = max(lengths)
    source = torch.tensor([[PAD] * (width - n) + [10 + row] + [5] * (n - 1) for row, n in enumerate(lengths)])
    sample = {
        "id": torch.arange(len(lengths)) + 100,
        "drafts": [[[10 + row]] for row in range(len(lengths))],
        "noise_keys": torch.arange(len(lengths))[:, None].expand(-1, 4),
        "net_input": {"src_tokens": source, "src_lengths": torch.tensor(lengths)},
    }
    followers: Any = Follower(), Follower()
    constraints = Constraints(PAD, 3, EOS, max_len=30)
    return Batch(sample, constraints, BEGIN, active), Method(*followers, GreedySearch())


def advance_by(batch: Batch, emitted: list[list[int]]) -> Advance:
    """Return the advance that emits these tokens, each with its negated number as log-probability."""
    width = max(map(len, emitted))
    tokens = torch.tensor([row + [77] * (width - len(row)) for row in emitted])
    counts = [len(row) for row in emitted]
    return Advance(
        tokens=tokens,
        log_probs=-tokens.float(),
        num_emitted=torch.tensor(counts),
        host_emitted=counts,
        num_accepted=torch.tensor(counts) - 1,
        finished=[row[-1] == EOS for row in emitted],
        hidden=None,
        features=None,
        draft=Draft(tokens[:, :0]),
        verification=Verification(torch.empty(0), tokens),
        before=batch.state.lengths,
        span_before=Span(0, 0),
    )


@settings(DETERMINISTIC, max_examples=example_count(150))
@given(
    outputs=st.lists(st.lists(EMITTED, max_size=4), min_size=1, max_size=9),
    source_lengths=st.randoms(use_true_random=False),
    active=st.integers(0, 6),
)
def test_every_sentence_gets_its_own_output(outputs: list[list[list[int]]], source_lengths: Any, active: int) -> None:
    """`outputs`: for every sentence the tokens that each iteration emits; the last iteration ends it."""
    outputs = [[*blocks, [EOS]] if index % 2 else [*blocks, [8, EOS]] for index, blocks in enumerate(outputs)]
    lengths = [source_lengths.randint(1, 6) for _ in outputs]
    batch, method = make_batch(lengths, active)
    done = Counter()
    limit, together = active or len(outputs), []
    while batch.admit(method):
        state = batch.state
        assert method.verifier.sentences == method.drafter.sentences == state.sentences
        assert len(set(state.sentences)) == len(state.sentences) <= limit
        # While enough sentences wait, at most a quarter of the rows is free.
        assert not batch.waiting or limit - len(state.sentences) < max(1, limit // 4)
        together.append(len(state.sentences))
        for row, sentence in enumerate(state.sentences):
            known = [token for block in outputs[sentence][: done[sentence]] for token in block]
            assert state.host_lengths[row] == int(state.lengths[row]) == len(known)
            assert state.tokens[row, : len(known) + 1].tolist() == [BEGIN, *known]
            assert state.noise_keys is not None and state.noise_keys[row].tolist() == [sentence] * 4
        advance = advance_by(batch, [outputs[sentence][done[sentence]] for sentence in state.sentences])
        done.update(state.sentences)
        state.append(advance)
        batch.retire(advance, method)
    assert together[0] == min(limit, len(outputs))
    for blocks, emitted, output in zip(outputs, batch.emitted, batch.outputs, strict=True):
        expected = [token for block in blocks for token in block]
        assert emitted == [len(block) for block in blocks]
        assert len(output) == 1 and output[0].tokens.tolist() == expected
        assert output[0].log_probs.tolist() == [-float(token) for token in expected]
        assert output[0].score == -sum(expected)


def test_longest_sources_first_without_extra_padding() -> None:
    batch, method = make_batch([2, 6, 1, 4, 3], 2)
    order = []
    while batch.admit(method):
        order += [sentence for sentence in batch.state.sentences if sentence not in order]
        advance = advance_by(batch, [[EOS]] * len(batch.state.sentences))
        batch.state.append(advance)
        batch.retire(advance, method)
    assert order == [1, 3, 4, 0, 2]
    samples = method.verifier.samples
    assert [sample["net_input"]["src_tokens"].size(1) for sample in samples] == [6, 3, 1]
    assert [sample["id"].tolist() for sample in samples] == [[101, 103], [104, 100], [102]]
