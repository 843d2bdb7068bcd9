"""Which sentences join a running batch, and when; test_lossless.py compares their outputs."""

from typing import Any

from fairseq_plugins.decoding.reference.drafters import NoDrafter
from fairseq_plugins.decoding.reference.engine import Engine
from tests.support import decode, make_sample, make_task, make_transformer


def admitted(lengths: list[int], active: int, max_len: int) -> list[dict[str, Any]]:
    """Decode sources with these numbers of words; return the samples that join the batch."""
    samples: list[dict[str, Any]] = []

    class Watching(NoDrafter):
        def start(self, sample: dict[str, Any], encoder_out: Any) -> None:
            samples.append(sample)

        append_rows = start

    task = make_task(100)
    model, search = make_transformer(task, 8), {"max_len_b": max_len, "min_len": 0, "active_sentences": active}
    decode([model], task, make_sample(task, lengths), Watching(), engine=Engine(), **search)
    return samples


def test_longest_sources_first_without_extra_padding() -> None:
    samples = admitted([1, 5, 0, 3, 2], 2, max_len=0)
    assert [sample["id"].tolist() for sample in samples] == [[1, 3], [4, 0], [2]]
    assert [sample["net_input"]["src_tokens"].size(1) for sample in samples] == [6, 3, 1]


def test_sentences_join_when_a_quarter_of_the_rows_is_free() -> None:
    first, *others = [len(sample["id"]) for sample in admitted([*range(20)], 8, max_len=40)]
    assert first == 8 and len(others) > 3 and min(others[:-1]) == 2 and sum(others) == 12
