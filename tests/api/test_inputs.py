"""Texts and numbers of calls: what is no text or out of range is one line, several sentences are split."""

import warnings
from typing import Any

import numpy
import pytest
import torch

import fairseq_plugins
from fairseq_plugins import Memory, Model
from fairseq_plugins.errors import ConfigurationError
from tests.api.released import MULTI30K, loaded

TEXTS = ["A dog runs.", "Two men sit.", "A man sleeps."]
HALF = "A dog\ud83d runs."
LONG = "dog " * 1100


def reuse() -> Model:
    return loaded("reuse", fixed_width=True)


CALLS: dict[str, Any] = {
    "translate": lambda model, text: model.translate(text),
    "return_scores": lambda model, text: model.translate(text, return_scores=True),
    "split": lambda model, text: model.translate(text, split="sentences"),
    "translate_batch": lambda model, text: model.translate_batch(text),
    "detokenize": lambda model, text: model.detokenize(text),
    "translate_iterable": lambda model, text: list(model.translate_iterable(text)),
    "stream": lambda model, text: list(model.stream(text)),
    "tokenize": lambda model, text: model.tokenize(text),
    "tokenize_target": lambda model, text: model.tokenize_target(text),
    "drafts": lambda model, text: model.translate("A dog.", drafts=[text]),
    "drafts of several": lambda model, text: model.translate(["A dog."], drafts=[text]),
    "memory.drafts": lambda model, text: Memory("none").drafts(text),
    "sources": lambda model, text: Memory("none").add(text, ["a"]),
    "targets": lambda model, text: Memory("none").add(["a"], text),
}
# A list of drafts is several drafts of a sentence.
TAKES_LISTS = {"translate", "return_scores", "split", "translate_iterable", "memory.drafts", "sources", "targets"}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("text", [None, b"A dog.", 3, ["A dog.", None], [["A dog."]], [b"A dog."], {"a": 1}.items()])
def test_what_is_no_text_is_named(call: str, text: Any) -> None:
    if (call, text) in (("drafts", None), ("drafts of several", None), ("translate_batch", [["A dog."]])):
        return
    with pytest.raises(
        (TypeError, ConfigurationError), match=r"^(texts?|tokens|drafts|sources|targets)[^ ]*:? "
    ) as error:
        CALLS[call](reuse(), text)
    assert "\n" not in str(error.value) and len(str(error.value)) < 200


@pytest.mark.parametrize("call", sorted(CALLS.keys() - {"translate_batch", "detokenize"}))
def test_half_of_a_character_is_named(call: str) -> None:
    text = [HALF] if call in TAKES_LISTS else HALF
    with pytest.raises(ConfigurationError, match=r"has '\\ud83d' at 5, which is half of a character; decode its bytes"):
        CALLS[call](reuse(), text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam": "1"}, 'beam="1": give a whole number or None, not str'),
        ({"beam": 1.5}, "beam=1.5: give a whole number or None, not float"),
        ({"batch_size": True}, "batch_size=True: give a whole number, not bool"),
        ({"num_hypotheses": 0}, "num_hypotheses=0: give a whole number of at least 1"),
        ({"max_len_a": float("nan")}, "max_len_a=nan: give a number$"),
        ({"min_len": None}, "min_len: give a whole number, not None"),
        ({"unkpen": "high"}, 'unkpen="high": give a number, not str'),
        ({"unnormalized": 1}, "unnormalized=1: give True or False, not int"),
        ({"split": "words"}, 'split="words": give None or "sentences"'),
        ({"on_error": "ignore"}, 'on_error="ignore": give "raise" or "skip"'),
        ({"split": "sentences", "return_scores": True}, "split=.*return_scores"),
        ({"split": "sentences", "drafts": ["a"]}, "split=.*drafts"),
        ({"no_repeat_ngram_size": 2}, "no_repeat_ngram_size: is no option of translate; give it to load"),
        ({"max_len": 3}, "max_len: no such option; did you mean max_len_"),
    ],
)
def test_options_of_calls(options: dict, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        reuse().translate("A dog runs.", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"folder": b"folder"}, "folder=b'folder': give text or None, not bytes"),
        ({"drafter": ["a"]}, r"drafter=\['a'\]: give text or None, not a list"),
        ({"threads": 0}, "threads=0: give a whole number of at least 1"),
        ({"threads": 100_000}, "threads=100000: give a whole number of at most 1024"),
        ({"task": None}, "task: give text, not None"),
        ({"task_options": "a"}, 'task_options="a": give a dict or None, not str'),
        ({"lenpen": 2000}, "lenpen=2000: give a number of at most 70"),
        ({"temperature": 1e-38}, "temperature=1e-38: give a number of at least 1e-30"),
        ({"temperature": 0}, "temperature=0: give a number above 0; for the best output leave out sampling= and this"),
        ({"min_len": -1}, "min_len=-1: give a whole number of at least 0"),
        ({"sampling": True, "sampling_topp": float("nan")}, "sampling_topp=nan: give a number$"),
        ({"sampling": True, "sampling_topp": 1.5}, "sampling_topp=1.5: give a number of at most 1"),
        ({"lm_weight": float("inf")}, "lm_weight=inf: give a number of at most 1000000"),
        ({"diversity_rate": float("nan")}, "diversity_rate=nan: give a number$"),
        ({"diverse_beam_strength": -float("inf")}, "diverse_beam_strength=-inf: give a number of at least -1000000"),
    ],
)
def test_arguments_of_load(options: dict, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        fairseq_plugins.load(**{"folder": MULTI30K, "decoder": "greedy", "device": "cpu", **options})


def test_numbers_of_numpy_and_torch_are_numbers() -> None:
    options: dict[str, Any] = {"batch_size": numpy.int64(2), "lenpen": numpy.float32(1), "max_len_b": torch.tensor(50)}
    assert reuse().translate(TEXTS, **options) == reuse().translate(TEXTS)


def test_sentences_of_a_text() -> None:
    model, expected = reuse(), reuse().translate(TEXTS)
    one, two, three = expected
    text = "\nA dog runs.  Two men sit.\r\n\n  A man sleeps. \n"
    assert model.translate(text, split="sentences") == f"\n{one}  {two}\r\n\n  {three} \n"
    assert model.statistics.sentences == 4  # and the blank before the first
    texts = ["A dog runs.", "", "Two men sit. A man sleeps."]
    assert model.translate(texts, split="sentences") == [one, "", f"{two} {three}"]


def test_several_lines_in_a_sentence_are_a_warning() -> None:
    model, expected = reuse(), reuse().translate(TEXTS)
    for call in (model.translate, lambda text: [*model.translate_iterable([text])], lambda text: [*model.stream(text)]):
        message = r'text.*: its lines are read as one sentence, .*split="sentences"'
        with pytest.warns(UserWarning, match=message) as caught:
            call("A dog runs.\nTwo men sit.")
        assert [one.filename for one in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model.translate(["A dog runs.\n", "A dog runs."]) == [expected[0]] * 2
        model.translate("A dog runs.\nTwo men sit.", split="sentences")


def test_what_cannot_be_translated_is_named_or_skipped() -> None:
    model, expected = reuse(), reuse().translate(TEXTS)
    texts = ["A dog runs.", LONG, HALF, "Two men sit."]
    with pytest.raises(ConfigurationError, match=r'^text\[1\]: has 1\d\d\d tokens, .* on_error="skip"$'):
        model.translate(texts)
    with pytest.raises(ConfigurationError, match=r"^text\[1\], sentence 1: has 1\d\d\d tokens"):
        model.translate(["fine", f"Fine. {LONG}"], split="sentences")
    with pytest.raises(ConfigurationError, match=r"^texts\[40\]: has 1\d\d\d tokens"):
        list(model.translate_iterable(["A dog."] * 40 + [LONG], batch_size=1))
    wanted = [expected[0], None, None, expected[1]]
    assert model.translate(texts, on_error="skip") == wanted
    assert model.statistics.sentences == 2
    assert model.translate(texts, on_error="skip", split="sentences") == wanted
    scored = model.translate(texts, on_error="skip", return_scores=True)
    assert [one and one.text for one in scored] == wanted
    assert [one and one.text for one in model.translate_iterable(texts, on_error="skip")] == wanted
    assert model.translate(texts, on_error="skip", drafts=[None, "a", "b", expected[1]]) == wanted
    assert model.translate(LONG, on_error="skip") is None  # type: ignore[call-overload]
