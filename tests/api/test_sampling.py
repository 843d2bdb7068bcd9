"""Sampling through the API and the commands."""

import gc
import json
from pathlib import Path
from unittest import mock

from fairseq_plugins.decoding.generator import DraftVerifyGenerator
from fairseq_plugins.decoding.native.model import NativeWeights
from fairseq_plugins.translation.cli import main
from tests.api.released import CLDR, loaded
from tests.errors import refused

TEXTS = ["Austrian German", "the day before yesterday", "", "in 3 months", "Chinese (Traditional)"]


def test_samples_do_not_depend_on_decoder_and_batch() -> None:
    model, options = loaded(folder=CLDR), {"sampling": True, "seed": 3, "temperature": 1.3}
    many = model.translate(TEXTS, return_scores=True, num_hypotheses=3, **options)
    assert [len(translation.alternatives) for translation in many] == [2, 2, 0, 2, 2]
    samples = [sample for translation in many for sample in (translation, *translation.alternatives)]
    assert model.statistics.sentences == 5 and model.statistics.tokens == sum(len(one.token_scores) for one in samples)
    assert model.statistics.iterations == sum(one.iterations or 0 for one in samples)
    assert all(sample.iterations for translation in many[3:] for sample in (translation, *translation.alternatives))
    greedy = loaded("greedy", CLDR, **options)
    alone = greedy.translate(TEXTS, return_scores=True, batch_size=1, num_hypotheses=3)
    for ours, same in zip(many, alone, strict=True):
        assert [each.text for each in (ours, *ours.alternatives)] == [each.text for each in (same, *same.alternatives)]
    options["num_hypotheses"] = 3
    assert model.translate_batch([model.tokenize(TEXTS[4])], numbers=[4], **options)[0].text == many[4].text
    read = model.translate_iterable(iter(TEXTS), batch_size=1, **options)
    assert [each.text for each in read] == [translation.text for translation in many]
    texts = {tuple(model.translate(TEXTS, sampling=True, seed=seed, temperature=1.3)) for seed in range(4)}
    assert len(texts) == 4
    assert model.translate(TEXTS) == model.translate(TEXTS, sampling=True, sampling_topk=1)
    for wrong, named in (({"sampling_topk": 3}, "sampling.topk 3"), ({"seed": "x"}, "seed x")):
        with refused(named):
            model.translate("week", **wrong)


def test_each_temperature_does_not_take_memory_for_good() -> None:
    def alive() -> int:
        gc.collect()
        return sum(isinstance(one, DraftVerifyGenerator) for one in gc.get_objects())

    model = loaded(folder=CLDR)
    before, expected = alive(), model.translate(TEXTS[1])
    stream = model.stream(TEXTS[1])
    steps = [next(stream)]
    for number in range(20):
        model.translate("week", sampling=True, temperature=1 + number / 100)
    assert [*steps, *stream][-1].text == model.translate(TEXTS[1]) == expected
    assert alive() - before < 12


def test_weights_are_packed_once() -> None:
    model = loaded(folder=CLDR)
    expected = [model.translate(TEXTS[1], sampling=True, temperature=each) for each in (1.0, 2.0)]
    with mock.patch.object(NativeWeights, "layer", side_effect=AssertionError("packs again")):
        for each in (1.5, 2.5):
            model.translate(TEXTS[1], sampling=True, temperature=each)
    other = loaded(folder=CLDR)
    found = [other.translate(TEXTS[1], sampling=True, temperature=each) for each in (2.0, 1.0)]
    assert found[::-1] == expected


def test_commands_sample_by_line_and_sentence(tmp_path: Path) -> None:
    source, output = tmp_path / "source", tmp_path / "output"

    def sampled(text: str, *options: str) -> list[dict]:
        source.write_text(text, encoding="utf-8")
        files = ["--input", str(source), "--output", str(output), "--device", "cpu", "--source-lang", "en"]
        assert main([str(CLDR), *files, "--output-format", "jsonl", "--sampling", *options]) == 0
        lines = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
        output.unlink()
        return lines

    found = sampled("\n".join(TEXTS) + "\n", "--seed", "5", "--nbest", "2", "--buffer-size", "2")
    expected = loaded(folder=CLDR).translate(TEXTS, return_scores=True, sampling=True, seed=5, num_hypotheses=2)
    for line, one in zip(found, expected, strict=True):
        texts = [line["text"], *(other["text"] for other in line["alternatives"])]
        assert texts == [one.text, *(other.text for other in one.alternatives)]
    text = "Some week. Some week. Some week. Some week.\n\nSome week.\n"
    line, _, alone = sampled(text, "--set", "temperature=3", "--split", "sentences")
    assert len({sentence["text"] for sentence in (*line["sentences"], *alone["sentences"])}) == 5
