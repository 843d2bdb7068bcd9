"""`load(task=...)`: models with fairseq's own tasks give the output of fairseq's search."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from fairseq.data import LanguagePairDataset

import fairseq_plugins
from tests.api.released import MULTI30K
from tests.errors import refused
from tests.families import FAMILIES, MAX_LEN, Family, generate

PADDED = {"source": 16, "target": 16}
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("registries")]  # of hydra's warnings


def arguments(family: Family, folder: Path) -> dict[str, Any]:
    """Return the arguments of `load` for a family whose model was saved."""
    given: dict[str, Any] = {"verifier": folder / "model.pt", "data": folder, "device": "cpu", "task": family.task}
    options = [*family.arguments(folder), "--"]
    of_task: dict[str, Any] = {}
    for option, value in zip(options, options[1:], strict=False):
        if option.startswith("--"):
            of_task[option[2:].replace("-", "_")] = True if value.startswith("--") else value
    languages = {name: of_task.pop(name) for name in ("source_lang", "target_lang") if name in of_task}
    return {**given, **languages, "task_options": of_task, "max_len_a": 0, "max_len_b": MAX_LEN}


def words(tokens: Iterable[str]) -> list[str]:
    """Return tokens that are neither languages nor other symbols."""
    return [token for token in tokens if token.startswith("w")]


@pytest.mark.parametrize(("name", "decoder"), [("m2m", "greedy"), ("mbart50", "jacobi"), ("multilingual", "greedy")])
def test_output_is_that_of_the_task(name: str, decoder: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    task, model = family.save(tmp_path)
    expected = [hypotheses[0] for hypotheses in generate(family, task, model, 1, 7)]
    symbols, own = task.target_dictionary.symbols, fairseq_plugins.load(decoder=decoder, **arguments(family, tmp_path))
    assert own.backend.startswith("native: ") and (own.source_lang, own.target_lang) == ("en", "de")
    batches = (batch["net_input"]["src_tokens"].tolist() for batch in family.batches(task, 7))
    sources = [words(symbols[token] for token in tokens) for batch in batches for tokens in batch]
    expected_words = [words(symbols[token] for token in tokens) for tokens in expected]
    assert [words(one.tokens) for one in own.translate_batch(sources, batch_size=5)] == expected_words
    assert words(token for step in own.stream(" ".join(sources[0])) for token in step.tokens) == expected_words[0]
    assert len({tuple(tokens) for tokens in expected_words}) > 10


# The language is beside EOS in the source, or in its place.
@pytest.mark.parametrize(("name", "limit"), [("m2m", 63), ("mbart25", 63), ("multilingual", 64)])
def test_alignments_are_to_the_text(name: str, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not to its language or EOS, which the search of mBART-25 does not know; also in batches that the task pads."""
    family = FAMILIES[name]
    family.save(tmp_path)
    text = ["w3 w9 w4".split(), "w1 w5 w6 w7 w8 w2".split()]

    def found() -> tuple[int, list[list[int] | None]]:
        model = fairseq_plugins.load(decoder="greedy", **arguments(family, tmp_path))
        return model.max_source_tokens, [one.alignment for one in model.translate_batch(text, alignments=True)]

    longest, aligned = found()
    for words_of, places in zip(text, aligned, strict=True):
        assert places is not None and set(places) <= set(range(len(words_of)))
    assert longest == limit and any(aligned)
    collate = LanguagePairDataset.collater
    monkeypatch.setattr(LanguagePairDataset, "collater", lambda self, some: collate(self, some, pad_to_length=PADDED))
    assert found() == (longest, aligned)


def test_wrong_options_are_named(tmp_path: Path) -> None:
    family = FAMILIES["m2m"]
    family.save(tmp_path)
    given = arguments(family, tmp_path)
    options = given["task_options"]
    for changed, message in (
        ({"task": "translate"}, "--task translate: no such value; did you mean translation"),
        ({"lang_pairs": "en-de"}, "give options of the task translation_multi_simple_epoch as task.opt"),
        ({"task": "spec_dec"}, "are for another task; give"),
        ({"task_options": {**options, "lang_pair": "en-de"}}, "no option of the task .*; did you mean .*lang.pairs"),
        ({"task_options": {**options, "lang_pairs": None}}, "lang.pairs.* is required"),
        ({"task_options": {**options, "encoder_langtok": "both"}}, "encoder.langtok.*both.*no such value; choose from"),
    ):
        with refused(message):
            fairseq_plugins.load(**{**given, **changed})


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ("denoising", "cannot be set up .FileNotFoundError: .*dict.txt"),
        ("multilingual_denoising", "cannot be set up .FileNotFoundError: .*dict.txt"),
        ("simul_text_to_text", "cannot be set up .Exception: Could not infer language pair"),
        ("online_backtranslation", "cannot be set up .AssertionError: "),
        ("sentence_prediction", "reads options of its criterion"),
    ],
)
def test_tasks_that_decode_nothing_are_named(task: str, reason: str) -> None:
    with refused(f"^--task {task}: {reason}.*; give a task that translates"):
        fairseq_plugins.load(MULTI30K, task=task, device="cpu")
