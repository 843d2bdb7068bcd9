"""Moses's tokenizer is for dictionaries that have its marks; raw text is never changed in silence."""

import logging
import shutil
from pathlib import Path

import pytest
from fairseq.data import encoders
from fairseq.dataclass.configs import FairseqConfig
from omegaconf import OmegaConf

import fairseq_plugins
from fairseq_plugins.api.files import find_files
from fairseq_plugins.api.text_tools import _warn_once, set_text_tools
from tests.api.released import MULTI30K, loaded
from tests.errors import error_about

TEXT = "Isn't a well-known dog"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with codes of subword-nmt."""
    copy = tmp_path_factory.mktemp("codes") / "model.en-de"
    shutil.copytree(MULTI30K, copy, ignore=shutil.ignore_patterns("SHA256SUMS"))
    (copy / "subwords.model").unlink()
    (copy / "bpe.codes").write_text("#version: 0.2\na b\n")
    for language in ("en", "de"):
        file = copy / f"dict.{language}.txt"
        file.write_text(file.read_text(encoding="utf-8").replace("\u2581", "~~"), encoding="utf-8")
    return copy


def with_words(folder: Path, target: Path, *words: str) -> Path:
    """Copy a model; the last words of its dictionaries, which are equal, become others."""
    shutil.copytree(folder, target)
    lines = (folder / "dict.en.txt").read_text(encoding="utf-8").splitlines()
    lines[-len(words) :] = [f"{word} 1" for word in words]
    for language in ("en", "de"):
        (target / f"dict.{language}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return target


def words(folder: Path, tokenizer: str | None = None) -> str:
    """Return text as a model cuts it, with whole words."""
    cfg = OmegaConf.structured(FairseqConfig())
    OmegaConf.set_struct(cfg, False)
    set_text_tools(cfg, find_files(folder, None, None, None, (None, None), None), tokenizer)
    cut = encoders.build_tokenizer(cfg.tokenizer)
    line = TEXT if cut is None else cut.encode(TEXT)
    return str(encoders.build_bpe(cfg.bpe).encode(line)).replace("@@ ", "")


def test_the_dictionary_chooses_the_tokenizer(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _warn_once.cache_clear()
    model = fairseq_plugins.load(folder, decoder="greedy", device="cpu")
    assert " ".join(model.tokenize(TEXT)).replace("@@ ", "") == TEXT == words(folder) == words(folder, "none")
    # Without its marks in the dictionary, Moses's tokenizer neither escapes nor splits hyphens.
    assert words(folder, tokenizer="moses") == "Isn 't a well-known dog"
    for marks, cut in (
        (["&apos;s", "@-@"], "Isn &apos;t a well @-@ known dog"),
        (["&quot;"], "Isn &apos;t a well-known dog"),
        (["@-@"], "Isn 't a well @-@ known dog"),
    ):
        other = with_words(folder, tmp_path / f"{len(cut)}.en-de", *marks)
        assert words(other) == cut == words(other, "moses") and words(other, "none") == TEXT
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [message.split(", ")[0].split()[1] for message in said] == ["none", "moses", "moses", "moses"]
    assert f"since {folder}/dict.en.txt has no &apos; and no @-@" in said[0]
    assert 'tokenizer="none" says otherwise' in said[1]  # as the process spells options
    caplog.clear()
    assert "&apos" not in "".join(loaded("greedy").tokenize("Isn't")) and not caplog.records  # sentencepiece


def test_subwords_of_another_kind_than_the_dictionary(folder: Path, tmp_path: Path) -> None:
    codes, model = folder / "bpe.codes", MULTI30K / "subwords.model"
    with error_about("--subwords", "cuts no subwords of sentencepiece (.*), which the dictionaries have"):
        fairseq_plugins.load(MULTI30K, decoder="greedy", device="cpu", subwords=codes)
    marked = with_words(folder, tmp_path / "marked.en-de", *(f"w{number}@@" for number in range(600)))
    with error_about("--subwords", "cuts no subwords of subword-nmt or fastBPE"):
        fairseq_plugins.load(marked, decoder="greedy", device="cpu", subwords=model)
    assert fairseq_plugins.load(marked, decoder="greedy", device="cpu").tokenize("ab c") == ["a@@", "b", "c"]


def test_target_text_has_the_rules_of_its_language(folder: Path) -> None:
    model = fairseq_plugins.load(folder, decoder="greedy", device="cpu", tokenizer="moses")
    cut = (model.tokenize("geht's"), model.tokenize_target("geht's"))
    assert [" ".join(words).replace("@@ ", "") for words in cut] == ["geht 's", "geht ' s"]
    assert loaded("greedy").tokenize_target("geht's") == loaded("greedy").tokenize("geht's")  # sentencepiece
