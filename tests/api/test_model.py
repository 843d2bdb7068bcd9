"""The Python API with the released models: the text of fairseq's own commands, and the types of results."""

import itertools
import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import fairseq_plugins
from fairseq_plugins.api import Model, Translation
from fairseq_plugins.api.files import find_languages
from fairseq_plugins.checkpoint.session import TaskSession
from fairseq_plugins.errors import ConfigurationError
from tests.api.released import CAPTIONS, MULTI30K, UA_GEC, interactive, loaded
from tests.conftest import Corpus
from tests.errors import refused
from tests.support import REPOSITORY, run_in_process

SENTENCES = (REPOSITORY / "examples" / "ua-gec" / "test.src").read_text(encoding="utf-8").splitlines()[::3]


@pytest.fixture
def model() -> Model:
    """Error correction with `iad`."""
    return loaded("iad", UA_GEC, fixed_width=True)


@pytest.fixture
def captions() -> Model:
    """Translation of captions with `gad`."""
    return loaded(fixed_width=True)


def test_backend_has_a_name_and_a_reason(model: Model) -> None:
    assert model.backend.startswith("native: ")
    assert loaded("beam", UA_GEC).backend == "fairseq: its own beam search"
    assert loaded("greedy", UA_GEC, no_compiled_steps=True).backend == "torch: --no-compiled-steps"


@pytest.mark.parametrize(
    ("decoder", "beam", "nbest"), [("iad", 1, 1), ("beam", None, 1), ("beam", 4, 3), ("fast-beam", 4, 3)]
)
def test_text_is_that_of_fairseq_interactive(decoder: str, beam: int | None, nbest: int, model: Model) -> None:
    own = model if decoder == "iad" else loaded(decoder, UA_GEC)
    texts = SENTENCES if decoder == "iad" else SENTENCES[:12]
    expected = interactive(UA_GEC, texts, f"--task translation --beam {beam or 5} --nbest {nbest}")
    translations = own.translate(texts, beam=beam, num_hypotheses=nbest, return_scores=True)
    hypotheses = [one for best in translations for one in (best, *best.alternatives)]
    assert len(expected) == len(texts) * nbest and [one.text for one in hypotheses] == [text for _, text in expected]
    for one, (score, _) in zip(hypotheses, expected, strict=True):
        assert one.score / math.log(2) == pytest.approx(score, abs=1e-4)
    if decoder == "iad":
        assert sum(text != source for text, source in zip(own.translate(texts), texts, strict=True)) > 20
    elif decoder == "beam":
        assert all(one.emitted is None and one.iterations is None for one in translations)


def test_searches_that_a_decoder_lacks_are_refused(model: Model) -> None:
    search = loaded("fast-beam", UA_GEC)
    with refused("beam 2: iad keeps one hypothesis; .*fast-beam"):
        model.translate("Так .", beam=2)
    with refused("none grows by itself"):
        search.stream("Так .")
    with refused("3: fast-beam keeps 2"):
        search.translate("Так .", beam=2, num_hypotheses=3, return_scores=True)
    with refused("2: a string is one"):
        search.translate("Так .", num_hypotheses=2)


def test_options_of_a_call_are_those_of_load(model: Model) -> None:
    few, before = SENTENCES[:6], model.translate(SENTENCES[:6])
    for changed in ({"min_len": 40, "unkpen": 3.0}, {"max_len_a": 0.5, "max_len_b": 2}):
        expected = loaded("iad", UA_GEC, **changed).translate(few)
        assert model.translate(few, **changed) == expected != before
        assert [one.text for one in model.translate_iterable(few, **changed)] == expected
        alone = model.translate(few, batch_size=1, **changed)  # a batch's longest source decides with max_len_a
        assert [list(model.stream(text, **changed))[-1].text for text in few] == alone
    assert before == model.translate(few)
    for changed, options in (({"lenpen": 3.0}, "--lenpen 3"), ({"unnormalized": True}, "--unnormalized")):
        expected = [text for _, text in interactive(UA_GEC, few, f"--task translation --beam 3 {options}")]
        assert loaded("fast-beam", UA_GEC).translate(few, beam=3, **changed) == expected


def test_threads_are_those_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    before, own = torch.get_num_threads(), loaded("iad", UA_GEC, threads=3)
    numbers: list[int] = []
    decode = TaskSession.decode

    def noting(*args: Any) -> Any:
        numbers.append(torch.get_num_threads())
        return decode(*args)

    monkeypatch.setattr(TaskSession, "decode", noting)
    assert own.translate("Так .") == "Так." and numbers == [3] and torch.get_num_threads() == before


def test_blank_text_stays_empty(captions: Model, model: Model) -> None:
    texts = ["", "Two dogs play.", " \t\n\u200b\ufeff\u2800", "People"]
    translations = captions.translate(texts)
    assert translations == ["", captions.translate(texts[1]), "", captions.translate(texts[3])] and translations[3]
    captions.translate(texts)
    assert captions.statistics.sentences == 4 and captions.statistics.iterations > 0
    assert captions.translate("", return_scores=True) == Translation("", [], 0.0, [], [])
    assert [translation.text for translation in captions.translate_iterable(texts)] == translations
    assert [(step.text, step.finished) for step in captions.stream("")] == [("", True)]
    assert model.translate([]) == []


def test_a_string_by_itself_is_not_several_texts(captions: Model) -> None:
    with pytest.raises(TypeError, match="texts: is str; use translate, or give a list of strings"):
        captions.translate_iterable("Two dogs")
    assert captions.translate(text for text in ("A dog runs.", "")) == ["Ein Hund rennt.", ""]


def test_one_line_loads_a_released_folder(captions: Model) -> None:
    assert (captions.decoder, captions.source_lang, captions.target_lang) == ("gad", "en", "de")
    assert captions.is_lossless and captions.max_source_tokens == 1024
    assert captions.translate("Two dogs play.") == captions.translate(["Two dogs play."])[0] == "Zwei Hunde spielen."


def test_order_is_kept_and_batches_do_not_matter(captions: Model) -> None:
    whole = captions.translate(CAPTIONS, return_scores=True)
    subwords = [captions.tokenize(text) for text in CAPTIONS]
    assert subwords[0][0] == "▁A" and subwords[2] == []
    for again in (
        captions.translate(tuple(CAPTIONS), batch_size=1, return_scores=True),
        captions.translate(tuple(CAPTIONS), batch_size=3, return_scores=True),
        captions.translate_batch(subwords),
    ):
        assert [(t.text, t.tokens) for t in again] == [(t.text, t.tokens) for t in whole]
    assert len({len(t.tokens) for t in whole}) == len(CAPTIONS)
    assert [captions.detokenize(t.tokens) for t in whole] == [t.text for t in whole]
    assert captions.translate_batch([["no-such-subword"]])[0].text == captions.translate_batch([["nor-this"]])[0].text


def test_scores_and_statistics_are_those_of_the_call(captions: Model) -> None:
    translations = captions.translate(CAPTIONS, return_scores=True)
    statistics = captions.statistics
    assert statistics.sentences == len(CAPTIONS) and statistics.seconds > 0
    assert statistics.tokens == sum(len(t.token_scores) for t in translations)
    assert statistics.iterations == sum(t.iterations or 0 for t in translations)
    assert statistics.tokens_per_iteration == statistics.tokens / statistics.iterations > 1
    one = translations[1]
    assert isinstance(one, Translation) and one.emitted is not None
    assert sum(one.emitted) == len(one.token_scores) == len(one.tokens) + 1
    assert one.iterations == len(one.emitted) < sum(one.emitted)
    assert one.score == pytest.approx(sum(one.token_scores) / len(one.token_scores), abs=1e-5)
    captions.translate("Two dogs play.")
    assert captions.statistics.sentences == 1 and statistics.sentences == len(CAPTIONS)


def test_steps_add_up_to_the_translation(captions: Model) -> None:
    for text in filter(None, CAPTIONS):
        translation = captions.translate(text, return_scores=True)
        steps = list(captions.stream(text))
        assert [token for step in steps for token in step.tokens] == translation.tokens
        assert steps[-1].text == translation.text
        assert [step.finished for step in steps] == [False] * (len(steps) - 1) + [True]
        assert captions.statistics.iterations == len(steps) == translation.iterations
        assert all(0 <= step.accepted <= step.drafted for step in steps)
        for step, emitted in zip(steps, translation.emitted or [], strict=True):
            assert emitted - step.accepted in (0, 1)


def test_streams_do_not_disturb_each_other(captions: Model) -> None:
    first, second = captions.stream(CAPTIONS[1]), captions.stream(CAPTIONS[0])
    next(first), next(second)
    assert captions.translate(CAPTIONS[3]) != ""
    second.close()
    assert list(first)[-1].text == captions.translate(CAPTIONS[1])


def test_iterables_are_read_as_needed(captions: Model) -> None:
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        for number in itertools.count():
            read += 1
            yield CAPTIONS[number % 2]

    expected = captions.translate(CAPTIONS[:2]) * 5
    translations = itertools.islice(captions.translate_iterable(endless(), batch_size=2), 10)
    assert [translation.text for translation in translations] == expected
    assert read == 64
    assert list(captions.translate_iterable([])) == []


def test_threads_take_turns(captions: Model) -> None:
    expected = captions.translate(CAPTIONS)
    barrier = threading.Barrier(4)

    def call(number: int) -> tuple[list[str], int, str]:
        barrier.wait()
        translations = []
        for _ in range(3):
            translations = captions.translate(CAPTIONS[: number + 1], batch_size=2)
        counted = captions.statistics.sentences
        return translations, counted, list(captions.stream(CAPTIONS[number]))[-1].text

    with ThreadPoolExecutor(4) as pool:
        for number, (translations, counted, streamed) in enumerate(pool.map(call, range(4))):
            assert translations == expected[: number + 1] and counted == number + 1 and streamed == expected[number]


def test_text_without_subwords(corpus: Corpus) -> None:
    """A checkpoint and data without subwords; the names of files tell the languages."""
    own = fairseq_plugins.load(verifier=corpus.verifier, drafter=corpus.drafter, data=corpus.data, device="cpu")
    lines = (corpus.text / "test.src").read_text().splitlines()
    stock = run_in_process(
        "interactive",
        f"{corpus.data} --task translation --source-lang src --target-lang tgt --path {corpus.verifier} --cpu --beam 1",
        input="".join(line + "\n" for line in lines),
    )
    expected = [line.split("\t")[2] for line in stock.stdout.splitlines() if line.startswith("H-")]
    assert own.translate(lines) == expected and len(expected) == 36


def test_released_heads_draft_more_than_one_token_per_iteration() -> None:
    """Head 1 verifies: the output is that of greedy decoding with the same weights."""
    heads, expected = loaded("blockwise", fixed_width=True), loaded("greedy", verifier=MULTI30K / "blockwise.pt")
    assert heads.translate(CAPTIONS) == expected.translate(CAPTIONS) == loaded("blockwise").translate(CAPTIONS)
    assert (heads.statistics.tokens_per_iteration or 0) > 2


REFUSED = [
    ({"folder": "none"}, "none: no such folder"),
    ({}, "no model is named"),
    ({"verifier": "{ua}/verifier.pt"}, "data: is missing"),
    ({"verifier": "none.pt", "data": "{ua}"}, 'verifier="none.pt": no such file'),
    ({"folder": "{ua}", "decoder": "fast"}, 'decoder="fast": no such value; choose from beam, '),
    ({"folder": "{ua}", "decoder": "blockwise"}, "blockwise.pt: no such file"),
    ({"folder": "{ua}", "block_size": "three"}, 'block_size="three": is not a value'),
    ({"folder": "{ua}", "decoder": "iad", "drafter": "{ua}/drafter.pt"}, 'decoder="iad" uses no drafter'),
    ({"folder": "{ua}", "decoder": "greedy", "preset": "high-quality"}, 'preset="high-quality": is for '),
    ({"folder": "{ua}", "device": "cuda:9"}, 'device="cuda:9": there are '),
    ({"folder": "{ua}", "device": "none"}, 'device="none": choose cpu'),
    ({"folder": "{ua}", "precision": "int4"}, 'precision="int4": no such value; choose from'),
    ({"folder": "{ua}", "subwords": "none.model"}, 'subwords="none.model": no such file'),
    ({"folder": "{ua}", "tokenizer": "spacy"}, 'tokenizer="spacy": choose moses or none'),
    ({"folder": "{ua}", "source_lang": "uk"}, "has no dict.uk.txt; it has those of src, tgt"),
    ({"folder": "{ua}", "drafter": "{m30k}/drafter.pt"}, "give the verifier that it was trained with"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_is_refused(arguments: dict, message: str) -> None:
    given = {name: value.format(ua=UA_GEC, m30k=MULTI30K) for name, value in {"device": "cpu", **arguments}.items()}
    with pytest.raises(ConfigurationError) as error:
        fairseq_plugins.load(**given)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_languages_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    for language in ("de", "en"):
        (folder / f"dict.{language}.txt").touch()
    with pytest.raises(ConfigurationError, match="does not say which of de, en is the source"):
        find_languages(folder)
    assert find_languages(folder, ("en", None)) == find_languages(folder, (None, "de")) == ("en", "de")
    (folder / "test.de-en.en.bin").touch()
    assert find_languages(folder) == ("de", "en")
    folder = folder.rename(tmp_path / "my.text.en-de")
    assert find_languages(folder) == ("en", "de")
    (folder / "dict.de.txt").rename(folder / "dict.pt-BR.txt")
    with pytest.raises(ConfigurationError, match="does not say which of en, pt-BR is the source"):
        find_languages(folder)
    (folder / "test.pt-BR-en.en.bin").touch()
    assert find_languages(folder) == ("pt-BR", "en")
    assert find_languages(folder.rename(tmp_path / "my.text.en-pt-BR")) == ("en", "pt-BR")


USE = """
import fairseq_plugins
from typing import Any
from fairseq_plugins import CallOptions, Model, Step, Translation

task: Any
model: Model = fairseq_plugins.load("folder", decoder="gad", block_size=5)
one: str = model.translate("text")
many: list[str] = model.translate(iter(["text", "text"]), batch_size=8)
scored: Translation = model.translate("text", return_scores=True)
all_scored: list[Translation] = model.translate(["text"], return_scores=True)
steps: list[Step] = list(model.stream("text"))
share: float | None = model.statistics.tokens_per_iteration
few: CallOptions = {"beam": 4, "batch_size": 2}
model.translate("text", **few)
fairseq_plugins.load("folder", task="other", task_options={"any": "thing"})
version: str = fairseq_plugins.__version__
wrong: int = model.translate("text")
fairseq_plugins.load("folder", block_sizes=5)
fairseq_plugins.load("folder", preset="high")
model.translate("text", beem=5)
fairseq_plugins.wrap(task, decoder="gad", block_sizes=5)
"""


def test_types(tmp_path: Path) -> None:
    """mypy checks users' programs, in any folder, with the settings of `make lint`, whose cache it reads."""
    (tmp_path / "use.py").write_text(USE)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    settings = ["--config-file", str(REPOSITORY / "pyproject.toml"), "--cache-dir", str(REPOSITORY / ".mypy_cache")]
    command = [sys.executable, "-m", "mypy", *settings, "use.py"]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    errors = [line for line in run.stdout.splitlines() if ": error:" in line]
    wrong = USE.splitlines().index('wrong: int = model.translate("text")') + 1
    lines = sorted({int(error.split(":")[1]) for error in errors})
    assert lines == list(range(wrong, wrong + 5)), run.stdout + run.stderr
