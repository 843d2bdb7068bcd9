"""Sampling through the API and the commands."""

import json
from pathlib import Path

import pytest

import fairseq_plugins
from fairseq_plugins import Model
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.translation.cli import run
from tests.support import REPOSITORY

CLDR = REPOSITORY / "checkpoints" / "cldr.en-de"
TEXTS = ["Austrian German", "the day before yesterday", "", "in 3 months", "Chinese (Traditional)"]


@pytest.fixture(scope="module")
def model() -> Model:
    return fairseq_plugins.load(CLDR, device="cpu")


def test_samples_do_not_depend_on_decoder_and_batch(model: Model) -> None:
    options = {"sampling": True, "seed": 3, "temperature": 1.3, "num_hypotheses": 3}
    many = model.translate(TEXTS, return_scores=True, **options)
    assert [len(translation.alternatives) for translation in many] == [2, 2, 0, 2, 2]
    assert model.statistics.sentences == 5
    assert all(sample.iterations for translation in many[3:] for sample in (translation, *translation.alternatives))
    greedy = fairseq_plugins.load(CLDR, decoder="greedy", device="cpu", sampling=True, seed=3, temperature=1.3)
    alone = greedy.translate(TEXTS, return_scores=True, batch_size=1, num_hypotheses=3)
    for ours, same in zip(many, alone, strict=True):
        assert [each.text for each in (ours, *ours.alternatives)] == [each.text for each in (same, *same.alternatives)]
    numbered = model.translate_batch([model.tokenize(TEXTS[4])], numbers=[4], **options)
    assert numbered[0].text == many[4].text
    assert [each.text for each in model.translate_iterable(iter(TEXTS), batch_size=1, **options)] == [
        translation.text for translation in many
    ]
    texts = {tuple(model.translate(TEXTS, sampling=True, seed=seed, temperature=1.3)) for seed in range(4)}
    assert len(texts) == 4
    assert model.translate(TEXTS) == model.translate(TEXTS, sampling=True, sampling_topk=1)


def test_commands_sample_by_line(model: Model, tmp_path: Path) -> None:
    source, output = tmp_path / "source", tmp_path / "output"
    source.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    options = [str(CLDR), "--input", str(source), "--output", str(output), "--device", "cpu", "--buffer-size", "2"]
    run([*options, "--sampling", "--seed", "5", "--nbest", "2", "--output-format", "jsonl"])
    found = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    expected = model.translate(TEXTS, return_scores=True, sampling=True, seed=5, num_hypotheses=2)
    assert [line["text"] for line in found] == [translation.text for translation in expected]
    assert [[other["text"] for other in line["alternatives"]] for line in found] == [
        [other.text for other in translation.alternatives] for translation in expected
    ]


def test_sentences_of_a_line_have_their_own_samples(tmp_path: Path) -> None:
    source, output = tmp_path / "source", tmp_path / "output"
    source.write_text("Some week. Some week. Some week. Some week.\n\nSome week.\n", encoding="utf-8")
    options = [str(CLDR), "--input", str(source), "--output", str(output), "--device", "cpu", "--source-lang", "en"]
    run([*options, "--sampling", "--set", "temperature=3", "--split", "sentences", "--output-format", "jsonl"])
    line, _, alone = (json.loads(line) for line in output.read_text(encoding="utf-8").splitlines())
    assert len({sentence["text"] for sentence in (*line["sentences"], *alone["sentences"])}) == 5


@pytest.mark.parametrize("options, named", [({"sampling_topk": 3}, "sampling_topk=3"), ({"seed": "x"}, 'seed="x"')])
def test_mistakes(model: Model, options: dict, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        model.translate("week", **options)
