"""`wrap`: which options it takes, and what it leaves as it was."""

import gc
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from fairseq_plugins import wrap
from fairseq_plugins.errors import ConfigurationError
from tests.support import fairseq_greedy, ids, make_dictionary, make_sample, make_task, make_transformer


def make_stock_task() -> TranslationTask:
    """fairseq's own translation task, without data."""
    dictionary = make_dictionary(40)
    return TranslationTask(TranslationConfig(), dictionary, dictionary)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decoder": "fast"}, 'decoder="fast": no such value; choose from .*greedy'),
        ({"decoder": "greedy", "max_len_b": 5}, "max_len_b: is no option of wrap; give it to load"),
        ({"decoder": "greedy", "jacobi_init": "unk"}, 'jacobi_init="unk": is for decoder="jacobi"'),
    ],
)
def test_wrong_options_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        wrap(make_stock_task(), **options)


def test_the_last_decoder_counts_and_beam_is_the_tasks_own() -> None:
    model, sample = make_transformer(make_task(), ending=False), make_sample(make_task(), [5, 3, 7])
    task: Any = make_task(decoding_method="jacobi")
    for decoder in ("iad", "greedy"):
        assert wrap(task, decoder=decoder) is task
        generator = task.build_generator([model], Namespace(max_len_b=20))
        assert generator.spec.name == decoder
        hypotheses = task.inference_step(generator, [model], sample)
        assert ids(hypotheses) == ids(fairseq_greedy([model], task, sample, max_len_b=20))
    assert type(wrap(task, decoder="beam").build_generator([model], Namespace())) is SequenceGenerator


@pytest.mark.parametrize(("option", "lines"), [("stats_file", 2), ("trace_file", 3)])
def test_files_of_results_are_there_once_the_generator_is_gone(tmp_path: Path, option: str, lines: int) -> None:
    model, sample, file = make_transformer(make_task()), make_sample(make_task(), [5, 3]), tmp_path / "results"
    task: Any = wrap(make_task(), decoder="iad", **{option: str(file)})  # type: ignore[arg-type]
    generator = task.build_generator([model], Namespace(max_len_b=9))
    task.inference_step(generator, [model], sample)
    assert not file.exists()
    del generator
    gc.collect()
    assert len(file.read_text().splitlines()) == lines


@pytest.mark.parametrize(("options", "learned"), [({}, False), ({}, True), ({"no_compiled_steps": True}, True)])
def test_a_source_beyond_the_positions_is_refused(options: dict[str, Any], learned: bool) -> None:
    task, model = make_stock_task(), make_transformer(make_task(), 1, ending=False, encoder_learned_pos=learned)
    generator = wrap(task, decoder="greedy", **options).build_generator([model], Namespace(max_len_b=20))
    fits = make_sample(make_task(), [63, 7])  # and EOS
    hypotheses = task.inference_step(generator, [model], fits)
    assert ids(hypotheses) == ids(fairseq_greedy([model], task, fits, max_len_b=20))
    with pytest.raises(ConfigurationError, match="a source has 65 tokens, and the model reads at most 64"):
        task.inference_step(generator, [model], make_sample(make_task(), [64, 7]))


@pytest.mark.parametrize("options", [{}, {"no_compiled_steps": True}], ids=["native", "torch"])
def test_an_output_beyond_the_positions_is_refused(options: dict[str, Any]) -> None:
    task, model = make_stock_task(), make_transformer(make_task(), 1, ending=False, max_target_positions=8)
    args = Namespace(beam=3, match_source_len=True)
    own = task.build_generator([model], args)
    generator = wrap(task, decoder="fast-beam", **options).build_generator([model], args)
    fits = make_sample(make_task(), [6, 3])  # and EOS
    assert ids(task.inference_step(generator, [model], fits)) == ids(own.generate([model], fits))
    with pytest.raises(ConfigurationError, match="an output may have 8 tokens, and the model writes at most 7"):
        task.inference_step(generator, [model], make_sample(make_task(), [7, 3]))
