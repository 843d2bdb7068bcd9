"""Errors of `load` for files that do not fit: one line with the argument that named the file."""

import os
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fairseq.data.encoders.subword_nmt_bpe import SubwordNMTBPEConfig
from hypothesis import given, settings
from hypothesis import strategies as st

import fairseq_plugins
from fairseq_plugins.api.files import GPT2_FILES, find_subwords
from fairseq_plugins.checkpoint.loading import read_checkpoint
from fairseq_plugins.conversion.convert import convert
from fairseq_plugins.data.fastbpe_codes import FastBPECodes, is_fastbpe
from fairseq_plugins.errors import ConfigurationError
from tests.api.released import CLDR, MULTI30K
from tests.conftest import Corpus
from tests.errors import refused
from tests.strategies import DETERMINISTIC
from tests.support import REPOSITORY, make_dictionary

LANGUAGES = {"source_lang": "en", "target_lang": "de"}


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    for language in ("en", "de"):
        make_dictionary(50).save(str(tmp_path / f"dict.{language}.txt"))
    model, tensors, other = MULTI30K / "verifier.pt", tmp_path / "model.safetensors", tmp_path / "other.pt"
    tensors.write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    other.write_bytes(tensors.read_bytes())
    for message, options in (
        ("verifier.pt: its weights do not fit .*dictionaries", {"verifier": model, "data": tmp_path, **LANGUAGES}),
        ("is in Hugging Face's format; .*spec-dec-convert", {"folder": MULTI30K, "verifier": tensors}),
        (f"{other}: truncated or not a fairseq checkpoint", {"folder": MULTI30K, "verifier": other}),
        (f"{model}: is a file; .* {MULTI30K}, or .*verifier", {"folder": model}),
    ):
        with refused(message):
            fairseq_plugins.load(device="cpu", **options)


def test_codes_of_fastbpe_cut_as_those_of_subword_nmt(tmp_path: Path) -> None:
    pairs = ["l o", "lo w</w>", "e r</w>", "lo w", "low er</w>", "n e", "ne w</w>"]
    files = {"pairs": ["#version: 0.2", *pairs], "counts": [f"{pair} {random.randrange(1, 9000)}" for pair in pairs]}
    subwords = []
    for dictionary in MULTI30K.glob("dict.*.txt"):  # without sentencepiece's mark, since codes do not write it
        words = dictionary.read_text(encoding="utf-8").replace("\u2581", "~~")
        (tmp_path / dictionary.name).write_text(words, encoding="utf-8")
    for name, lines in files.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
        model = fairseq_plugins.load(
            MULTI30K, decoder="greedy", data=tmp_path, subwords=tmp_path / name, device="cpu", **LANGUAGES
        )
        subwords.append(model.tokenize("low lower new newer l"))
    assert subwords[0] == subwords[1] == "low lower new ne@@ w@@ er l".split()
    codes = FastBPECodes(SubwordNMTBPEConfig(bpe_codes=str(tmp_path / "counts")))
    assert codes.decode("low ne@@ w@@ er") == "low newer"


SYMBOLS = st.text(st.sampled_from("ab\x85\u00a0\u2028\u3000\x1c\r\t#"), min_size=1, max_size=3)


@settings(DETERMINISTIC)
@given(pairs=st.lists(st.tuples(SYMBOLS, SYMBOLS), min_size=1, unique=True))
def test_symbols_of_fastbpe_contain_any_character_but_line_feed_and_space(
    pairs: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("codes") / "codes"
    with file.open("w", encoding="utf-8", newline="") as codes:
        codes.writelines(f"{left} {right} {number}\n" for number, (left, right) in enumerate(pairs))
    assert is_fastbpe(file)
    assert set(FastBPECodes(SubwordNMTBPEConfig(bpe_codes=str(file))).bpe.bpe_codes) == set(pairs)


@pytest.mark.parametrize(
    ("text", "problem"),
    [*((text, "is neither") for text in ("a b 1 2\n", "", "a b\na b 1\n")), ("#version: 9.9\na b\n", "NotImplemented")],
)
def test_other_codes_are_refused(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "codes").write_text(text)
    with refused(f"codes: .*{problem}", "--subwords"):
        fairseq_plugins.load(MULTI30K, subwords=tmp_path / "codes", device="cpu")


@pytest.mark.filterwarnings("error::UserWarning")
def test_other_checkpoints_are_refused_in_one_line(tmp_path: Path) -> None:
    """torch warns about these, too."""
    (tmp_path / "pickle.pt").write_bytes(pickle.dumps({"model": Path("x")}, 4))
    torch.jit.script(torch.nn.Identity()).save(str(tmp_path / "script.pt"))
    for file in tmp_path.iterdir():
        with refused("not made of weights and settings", "--path"):
            read_checkpoint(str(file), "--path")


def test_subwords_of_gpt2_are_two_files(tmp_path: Path) -> None:
    files = [tmp_path / name for name in GPT2_FILES]
    for file in files:
        file.touch()
    for path in (None, tmp_path, *files):
        assert find_subwords(tmp_path, path) == tmp_path
    files[0].unlink()
    for path in (None, tmp_path, files[1]):
        with pytest.raises(ConfigurationError, match="subwords=.* has no encoder.json"):
            find_subwords(tmp_path, path)


def test_names_of_the_hub_are_not_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name = "Helsinki-NLP/opus-mt-en-de"
    for call in (fairseq_plugins.load, lambda folder: convert(Path(folder), tmp_path / "out")):
        with pytest.raises(ConfigurationError, match=f"{name}: no such folder; .*hf download {name} --local-dir opus-"):
            call(name)
    monkeypatch.chdir(REPOSITORY)
    message = "checkpoints/multi: no such folder; give one with verifier.pt"
    with pytest.raises(ConfigurationError, match=message) as error:
        fairseq_plugins.load("checkpoints/multi")
    assert "hub" not in str(error.value)
    with pytest.raises(ConfigurationError, match=f"give it without ~: {Path.home() / 'none'}$"):
        fairseq_plugins.load("~/none")


def test_the_best_checkpoint_of_a_folder_is_found(tmp_path: Path) -> None:
    for file in MULTI30K.glob("dict.*.txt"):
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "subwords.model").symlink_to(MULTI30K / "subwords.model")
    for name in ("checkpoint_last.pt", "checkpoint_best.pt", "verifier.pt"):
        (tmp_path / name).symlink_to(MULTI30K / "verifier.pt")
        model = fairseq_plugins.load(tmp_path, device="cpu", **LANGUAGES)
        assert repr(model) == f"Model('{tmp_path}/{name}', decoder='greedy')"
    with pytest.raises(ConfigurationError, match=f"is a folder; give a checkpoint, such as {tmp_path}/verifier.pt"):
        fairseq_plugins.load(verifier=tmp_path, data=tmp_path, **LANGUAGES)
    (tmp_path / "verifier.pt").unlink()
    (tmp_path / "checkpoint_best.pt").unlink()
    last = f"{tmp_path}/checkpoint_last.pt"
    with pytest.raises(ConfigurationError, match=f"is a folder; give a checkpoint, such as {last}"):
        read_checkpoint(str(tmp_path), "--verifier-path")
    with pytest.raises(ConfigurationError, match=f"no such file; give the checkpoint .*, such as {last}"):
        read_checkpoint(f"{tmp_path}/checkpoint_best.pt", "--verifier-path")


@pytest.mark.parametrize("name", ["verifier.pt", "drafter.pt", "subwords.model", "load.json"])
def test_a_name_that_leads_to_no_file_is_refused(name: str, tmp_path: Path) -> None:
    """Without the file another would be taken, or none: words cut at spaces, no drafts."""
    folder = tmp_path / "model.en-de"
    folder.mkdir()
    for file in MULTI30K.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "checkpoint_last.pt").symlink_to(MULTI30K / "verifier.pt")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / "gone")
    with refused(f"{name}: leads to no file|{name}: cannot be read"):
        fairseq_plugins.load(folder, device="cpu")
    (folder / name).unlink()
    (folder / name).mkdir()
    with refused(f"{name}: is not a file|{name}: cannot be read"):
        fairseq_plugins.load(folder, device="cpu")


def test_a_path_that_is_not_utf8(tmp_path: Path) -> None:
    """sentencepiece opens none; torch and Python do."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/mod\xe8le.en-de"))
    folder.symlink_to(CLDR)
    with refused("subwords .*: cannot be read .sentencepiece opens no file whose path is not UTF-8.; rename it or its"):
        fairseq_plugins.load(folder, device="cpu")
    assert fairseq_plugins.load(folder, device="cpu", subwords=CLDR / "subwords.model").translate("Monday")


@pytest.mark.parametrize("marked", ["{}@@", "\u2581{}"])
def test_dictionaries_of_subwords_without_their_file_are_a_warning(
    marked: str, corpus: Corpus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for word, warnings in (("{}", 0), (marked, 1)):
        for side in ("src", "tgt"):
            lines = (corpus.data / f"dict.{side}.txt").read_text().splitlines(keepends=True)
            changed = [word.format(line.split()[0]) + " 1\n" for line in lines]
            (tmp_path / f"dict.{side}.txt").write_text("".join(changed), encoding="utf-8")
        fairseq_plugins.load(verifier=corpus.verifier, data=tmp_path, device="cpu")
        assert len(caplog.records) == warnings
    assert "give the codes or the model as subwords" in caplog.text


def _flipped(content: bytes) -> bytes:
    return content.replace(b"decoder.layers", b"decoder\x97layers")


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("verifier.pt", _flipped),
        ("verifier.pt", lambda _: (CLDR / "dict.de.txt").read_bytes()),
        ("verifier.pt", lambda _: (CLDR / "subwords.model").read_bytes()),
        ("verifier.pt", lambda _: b""),
        ("drafter.pt", _flipped),
        ("subwords.model", lambda _: b"[" * 100_000),
        ("subwords.model", lambda content: content[:1000]),
        ("subwords.model", lambda _: b""),
        ("dict.en.txt", lambda content: content.replace(b" ", b"\xff", 1)),
        ("bpe.codes", lambda _: b"a b\n\nc d\n"),
    ],
)
def test_damaged_files_are_named(file: str, damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    """A damaged file lets libraries fail in any way, some of them only at the first sentence."""
    folder = shutil.copytree(CLDR, tmp_path / "model.en-de", ignore=shutil.ignore_patterns("SHA256SUMS"))
    if file == "bpe.codes":
        (folder / "subwords.model").rename(folder / file)
    (folder / file).write_bytes(damage((folder / file).read_bytes()))
    with pytest.raises(ConfigurationError, match=f"^[^\\n]*{file}[^\\n]*$"):
        fairseq_plugins.load(folder, device="cpu")
