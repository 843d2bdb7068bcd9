"""Raw text in and out: ids and text of Hugging Face's greedy `generate`, with its own tokenizers.

SPEC_DEC_SENTENCES=500 compares as many sentences of each family.
"""

import json
import lzma
import os
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch

import fairseq_plugins
from fairseq_plugins.conversion.convert import convert
from fairseq_plugins.conversion.int8 import write_int8
from fairseq_plugins.conversion.vocabulary import byte_level_bpe, text_files
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.translation.drafts import DraftSources
from tests.conversion.support import CLASSES, SIZES, TOKENIZERS, liven
from tests.support import REPOSITORY

SENTENCES = int(os.environ.get("SPEC_DEC_SENTENCES", "12"))
BATCH_SIZE = 50
LONGEST = 25
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
LANGUAGES = {
    "m2m100": {"source_lang": "en", "target_lang": "de"},
    "nllb": {"source_lang": "eng_Latn", "target_lang": "deu_Latn"},
    "mbart50": {"source_lang": "en_XX", "target_lang": "de_DE"},
}
MODELS = {
    "marian": ("MarianMTModel", "MarianTokenizer"),
    "m2m100": ("M2M100ForConditionalGeneration", "M2M100Tokenizer"),
    "nllb": ("M2M100ForConditionalGeneration", "NllbTokenizer"),
    "mbart50": ("MBartForConditionalGeneration", "MBart50Tokenizer"),
    "bart": ("BartForConditionalGeneration", "BartTokenizer"),
}


def _text(language: str) -> str:
    with lzma.open(REPOSITORY / f"examples/cldr.en-de/train.{language}.xz", "rt", encoding="utf-8") as file:
        return "".join(islice(file, 300))


TEXT, TARGET_TEXT = _text("en"), _text("de")


def sentences() -> list[str]:
    """Return sentences of one to twelve words."""
    words = [word for word in TEXT.split() if word.isascii() and word.isalpha()]
    return [
        " ".join(words[(7 * number + place) % len(words)] for place in range(1 + number % 12))
        for number in range(SENTENCES)
    ]


def save_tokenizer(name: str, folder: Path, target_text: str = TEXT) -> Any:
    """Write the files that models of this family come with; return Hugging Face's tokenizer.

    Marian's subwords of the target are learned from `target_text`.
    """
    if name == "bart":
        from tokenizers import ByteLevelBPETokenizer

        trained = ByteLevelBPETokenizer()
        special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        trained.train_from_iterator(TEXT.splitlines(), vocab_size=400, special_tokens=special, show_progress=False)
        trained.save_model(str(folder))
        return TOKENIZERS["BartTokenizer"].from_pretrained(folder)
    files = {"source.spm": TEXT, "target.spm": target_text} if name == "marian" else {"sentencepiece.bpe.model": TEXT}
    words = []
    for file, text in files.items():
        prefix = str(folder / "trained")
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text.splitlines()),
            model_prefix=prefix,
            model_type="bpe" if name == "nllb" else "unigram",
            vocab_size=200,
            character_coverage=1.0,
            minloglevel=2,
        )
        model = Path(f"{prefix}.model").read_bytes()
        (folder / file).write_bytes(model)
        pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
        words += [pieces.id_to_piece(number) for number in range(3, len(pieces))]
    words = list(dict.fromkeys(words))
    options: dict[str, Any] = {"src_lang": LANGUAGES[name]["source_lang"]} if name in LANGUAGES else {}
    if name == "nllb":
        options["extra_special_tokens"] = list(LANGUAGES[name].values())
    if name == "marian":
        options = {"source_lang": "en", "target_lang": "de"}
    if name in ("marian", "m2m100"):
        vocabulary = ["</s>", "<unk>", *words, "<pad>"] if name == "marian" else [*SPECIAL, *words]
        (folder / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(vocabulary)}))
    tokenizer = TOKENIZERS[MODELS[name][1]].from_pretrained(folder, **options)
    tokenizer.save_pretrained(folder)
    return tokenizer


def forced_token(name: str, tokenizer: Any) -> int | None:
    """Return the id that outputs of a family begin with."""
    if name not in LANGUAGES:
        return 0 if name == "bart" else None
    language = LANGUAGES[name]["target_lang"]
    token: int = tokenizer.get_lang_id(language) if name == "m2m100" else tokenizer.convert_tokens_to_ids(language)
    return token


def save_model(name: str, folder: Path, tokenizer: Any) -> Any:
    """Save a random model for a tokenizer; return it."""
    kind = CLASSES[MODELS[name][0]]
    eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    size = 1 + max(len(tokenizer), *getattr(tokenizer, "id_to_lang_token", {0: ""}))
    config = kind.config_class(
        vocab_size=size,
        d_model=32,
        max_position_embeddings=128,
        decoder_start_token_id=pad if name == "marian" else eos,
        pad_token_id=pad,
        eos_token_id=eos,
        bos_token_id=0,
        **SIZES,
    )
    torch.manual_seed(6)
    model = kind(config)
    liven(model)
    # Trained models do not emit languages, `<unk>` or unnamed tokens, which decoding would leave out.
    words = 200 if name != "bart" else len(tokenizer)
    never = {*range(words, size), *tokenizer.all_special_ids} - {eos}
    with torch.no_grad():
        shared = model.get_input_embeddings().weight
        shared[sorted(never)] *= 0.01
        if name in LANGUAGES:
            shared[eos] *= 0.5
        for weight_name, weight in model.named_parameters():
            if "q_proj.weight" in weight_name or "k_proj.weight" in weight_name:
                weight *= 0.25  # harder attention enlarges what fp32 rounds: 0.03 between logits in fp32 and fp64
    if name == "bart":
        model.generation_config.forced_bos_token_id = 0
    model.save_pretrained(folder)
    return model.eval()


@torch.no_grad()
def generated(model: Any, tokenizer: Any, text: list[str], forced: int | None) -> list[tuple[list[int], str]]:
    """Return ids without special ones, and text, of Hugging Face's greedy search."""
    outputs = model.generate(
        **tokenizer(text, return_tensors="pt", padding=True),
        num_beams=1,
        do_sample=False,
        max_new_tokens=LONGEST,
        forced_bos_token_id=forced,
        forced_eos_token_id=None,
        bad_words_ids=[[tokenizer.pad_token_id]],
    )
    special = {*tokenizer.all_special_ids, forced}
    words = [[number for number in row if number not in special] for row in outputs.tolist()]
    return list(zip(words, tokenizer.batch_decode(words), strict=True))


def test_byte_level_subwords_that_transformers_5_saved(tmp_path: Path) -> None:
    (tmp_path / "bart").mkdir()
    save_tokenizer("bart", tmp_path / "bart").save_pretrained(tmp_path / "saved")
    bpe = byte_level_bpe(tmp_path / "bart")
    assert bpe is not None and len(bpe[1]) > 100
    assert byte_level_bpe(tmp_path / "saved") == bpe


def test_outputs_show_added_and_unnamed_tokens(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    tokenizer = save_tokenizer("bart", tmp_path / "hf")
    tokenizer.add_tokens(["<é>"])
    tokenizer.save_pretrained(tmp_path / "hf")
    save_model("bart", tmp_path / "hf", tokenizer)  # with an id that the tokenizer lacks
    convert(tmp_path / "hf", tmp_path / "out")
    last = len(tokenizer)
    model = fairseq_plugins.load(tmp_path / "out", device="cpu")
    assert model.detokenize([str(last - 1), str(last)]) == f"<é>madeupword{last}"


# Compatibility forms, accents as marks, other scripts, unknown characters, blanks.
UNUSUAL = ["① ﬁne  two   spaces", "e\u0301a naïve café\u00a0x\ty", "日本語 ｆｕｌｌ", "😀😀 b", " a ", "a" * 300]


@pytest.fixture(scope="module", params=["nllb", "mbart50"])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path, Path]:
    """A tokenizer, its folder with a model of sentencepiece, and one as transformers 5 saves it: without."""
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "whole").mkdir()
    tokenizer = save_tokenizer(request.param, folder / "whole")
    tokenizer.save_pretrained(folder / "saved")
    assert not (folder / "saved" / "sentencepiece.bpe.model").exists()
    return tokenizer, folder / "whole", folder / "saved"


def pieces_of(folder: Path) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=text_files(folder, None, {})["subwords.model"])


def test_subwords_of_tokenizer_json_are_those_of_the_tokenizer(saved: tuple[Any, Path, Path]) -> None:
    tokenizer, whole, folder = saved
    made, model = pieces_of(folder), pieces_of(whole)
    manual = [line for file in (REPOSITORY / "docs").glob("*.md") for line in file.read_text("utf-8").splitlines()]
    for line in (*manual, *UNUSUAL):
        pieces = made.encode(line, out_type=str)
        assert pieces == model.encode(line, out_type=str)
        # Its tokenizer also finds the names of special tokens, and keeps a blank at the end.
        names = {*tokenizer.all_special_tokens, *tokenizer.added_tokens_encoder}
        if line.strip() == line and not any(name in line for name in names):
            assert tokenizer.convert_tokens_to_ids(pieces) == tokenizer(line, add_special_tokens=False).input_ids


REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}
METASPACE = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first"}
CHANGES: dict[str, tuple[str, Any]] = {
    "its text is changed by Lowercase": ("normalizer", {"type": "Lowercase"}),
    "its text is changed by Replace": ("normalizer", {"type": "Sequence", "normalizers": [REPLACE]}),
    "its precompiled_charsmap is not base64": ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "*"}),
    "its words are cut by WhitespaceSplit": ("pre_tokenizer", {"type": "WhitespaceSplit"}),
    "its words are cut by Metaspace": ("pre_tokenizer", METASPACE),
    "its words are cut by None": ("pre_tokenizer", None),
    "its subwords have byte_fallback": ("model", {"byte_fallback": True}),
}


def changed(folder: Path, target: Path, change: Any) -> Path:
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    change(tokenizer)
    target.mkdir()
    (target / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    return target


@pytest.mark.parametrize("reason", CHANGES)
def test_tokenizers_that_sentencepiece_lacks(reason: str, saved: tuple[Any, Path, Path], tmp_path: Path) -> None:
    name, value = CHANGES[reason]

    def change(tokenizer: dict[str, Any]) -> None:
        tokenizer[name] = {**tokenizer[name], **value} if name == "model" else value

    message = rf"changed: has no sentencepiece.bpe.model, and its tokenizer.json cannot become one \({reason}\); copy "
    with pytest.raises(ConfigurationError, match=message):
        text_files(changed(saved[2], tmp_path / "changed", change), None, {})


@pytest.mark.parametrize("saved", ["nllb"], indirect=True)
def test_merges_in_another_order_are_refused(saved: tuple[Any, Path, Path], tmp_path: Path) -> None:
    def drop(tokenizer: dict[str, Any]) -> None:
        tokenizer["model"]["merges"].pop(3)

    def part(tokenizer: dict[str, Any]) -> None:
        merges = tokenizer["model"]["merges"]
        pieces = ["".join(pair) for pair in merges]
        twice = next(number for number, piece in enumerate(pieces[1:], 1) if piece == pieces[number - 1])
        merges.append(merges.pop(twice))

    for change, reason in ((drop, "its merges lack '.+ .+'"), (part, "its merges of '.+' are apart")):
        with pytest.raises(ConfigurationError, match=reason):
            text_files(changed(saved[2], tmp_path / change.__name__, change), None, {})


@pytest.mark.parametrize("name", MODELS)
def test_ids_and_text_are_those_of_generate(name: str, tmp_path: Path) -> None:
    folder, text = tmp_path / "hf", sentences()
    folder.mkdir()
    if name == "bart":
        text[0] = "1 < 2 </ 3"  # whose names look like those of special tokens
    tokenizer = save_tokenizer(name, folder)
    model = save_model(name, folder, tokenizer)
    forced = forced_token(name, tokenizer)
    if name == "nllb":
        (folder / "sentencepiece.bpe.model").unlink()  # as transformers 5 saves it
    batches = (text[first : first + BATCH_SIZE] for first in range(0, SENTENCES, BATCH_SIZE))
    expected = [pair for batch in batches for pair in generated(model, tokenizer, batch, forced)]
    assert len({one for _, one in expected}) > min(SENTENCES // 4, 50)
    convert(folder, tmp_path / "out")
    own = fairseq_plugins.load(
        tmp_path / "out", decoder="greedy", device="cpu", max_len_b=LONGEST, **LANGUAGES.get(name, {})
    )
    if name == "marian":
        # By whose rules text is split; the dictionaries are those of src and tgt.
        assert (own.source_lang, own.target_lang) == ("en", "de")
    translations = own.translate(text, return_scores=True)
    # fairseq's dictionary of BART has numbers as symbols.
    name_of = str if name == "bart" else tokenizer.convert_ids_to_tokens
    assert [one.tokens for one in translations] == [[name_of(number) for number in ids] for ids, _ in expected]
    assert [one.text.strip() for one in translations] == [one.strip() for _, one in expected]


def test_marian_cuts_target_text_by_the_model_of_the_target(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    tokenizer = save_tokenizer("marian", tmp_path / "hf", TARGET_TEXT)
    save_model("marian", tmp_path / "hf", tokenizer)
    phrases = [" ".join(line.split()[:2]) for line in TARGET_TEXT.splitlines()[:9]]
    expected = [tokenizer.convert_ids_to_tokens(ids[:-1]) for ids in tokenizer(text_target=phrases).input_ids]
    assert all("<unk>" not in words for words in expected)
    convert(tmp_path / "hf", tmp_path / "out")
    write_int8(tmp_path / "out", tmp_path / "int8", None)
    for folder in ("hf", "int8"):  # the first is converted by `load`
        model = fairseq_plugins.load(tmp_path / folder, decoder="fast-beam", device="cpu", max_len_b=LONGEST)
        assert [model.tokenize_target(phrase) for phrase in phrases] == expected
        assert sum(model.tokenize(phrase) != words for phrase, words in zip(phrases, expected, strict=True)) > 3
        found = model.translate(["day"] * len(phrases), constraints=phrases, return_scores=True)
        for one, words in zip(found, expected, strict=True):
            assert f" {' '.join(words)} " in f" {' '.join(one.tokens)} "
    drafts = tmp_path / "drafts"
    drafts.write_text("\n".join(phrases), encoding="utf-8")
    sources = DraftSources([str(drafts)], str(drafts), None, adds=False)
    lines = list(enumerate(phrases))
    assert sources.tokens(lines, model) == [[words] for words in expected]
    (tmp_path / "out/subwords.target.model").write_bytes(b"none")
    (tmp_path / "out/SHA256SUMS").unlink()
    with pytest.raises(ConfigurationError, match='subwords.target.model": cannot be read'):
        fairseq_plugins.load(tmp_path / "out", device="cpu")
