"""Statistics: sums, files, and when a file gets its name."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from fairseq_plugins.decoding.recording.stats import DecodingStats, SentenceStats
from fairseq_plugins.decoding.reference.captured.graph_capture import Graphs
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.shared.machine import machine
from tests.support import Options, decode, fairseq_greedy, ids, make_all

BATCH = [SentenceStats(3, 5, 7, 2, [4, 3], 2, 0.5), SentenceStats(1, 4, 2, 1, [2], 2, 0.5)]


def test_sums_and_summary(capsys: pytest.CaptureFixture[str]) -> None:
    stats = DecodingStats("gad")
    stats.backend = "torch: --no-compiled-steps"
    stats.record(BATCH, 1.0)
    stats.record(BATCH[:1], 2.0)
    assert (stats.sentences, stats.tokens, stats.iterations, stats.seconds) == (3, 16, 5, 3.0)
    assert stats.tokens_per_iteration == pytest.approx(3.2)
    stats.close()
    assert capsys.readouterr().err.strip() == (
        "gad: 3 sentences, 16 tokens, 5 iterations, 3.20 tokens per iteration, batch size 2, "
        "5.3 tokens/s; torch: --no-compiled-steps"
    )


def test_summary_names_graphs() -> None:
    stats = DecodingStats("gad")
    stats.record(BATCH, 1.0)
    stats.graphs = Graphs(captures=4, dropped=1, replays=70, launched=8)
    assert stats.summary().endswith("; CUDA graphs on: 4 captures, 1 dropped, 70 steps from graphs, 8 launched")
    stats.graphs.failed = True
    assert "; CUDA graphs gave up: 4 captures" in stats.summary()
    stats.graphs = Graphs(enabled=False, launched=8)
    assert "; CUDA graphs off: 0 captures" in stats.summary()


def test_file_gets_its_name_at_the_end(tmp_path: Path) -> None:
    file = tmp_path / "stats.jsonl"
    stats = DecodingStats("gad", str(file))
    stats.backend = "native: the compiled kernels"
    stats.record(BATCH, 1.0)
    assert not file.exists()
    stats.close()
    written = [json.loads(line) for line in file.read_text().splitlines()]
    assert written[0].pop("run") == {"command": shlex.join(sys.argv), "machine": machine()}
    assert written == [{**vars(sentence), "backend": "native"} for sentence in BATCH]
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("engine", [None, Engine()], ids=["native", "torch"])
def test_sentences_are_recorded_in_order(engine: Engine | None) -> None:
    """Sentences that leave the batch at different times keep their numbers and counts."""
    task, model, sample = make_all(100, 8, [0, 3, 30, 7], share_decoder_input_output_embed=True)
    sample["id"] += 10
    outputs = ids(fairseq_greedy([model], task, sample, max_len_b=40))
    _, stats = decode([model], task, sample, Options("greedy"), engine=engine, max_len_b=40)
    assert [s.id for s in stats] == [10, 11, 12, 13]
    assert [s.source_tokens for s in stats] == [1, 4, 31, 8]
    assert [s.tokens for s in stats] == [len(tokens) for tokens in outputs]
    assert all(s.emitted == [1] * s.tokens and s.iterations == s.tokens and s.batch_size == 4 for s in stats)
