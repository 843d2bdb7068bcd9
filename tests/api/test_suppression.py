"""Suppressed tokens in the API and the commands."""

from pathlib import Path
from typing import Any

import pytest

import fairseq_plugins
from fairseq_plugins import Model
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.translation.cli import run
from tests.support import REPOSITORY, run_in_process

CLDR = REPOSITORY / "checkpoints" / "cldr.en-de"
TEXTS = ["Austrian German", "the day before yesterday", "in 3 months", "Chinese (Traditional)"]


@pytest.fixture(scope="module")
def model() -> Model:
    return fairseq_plugins.load(CLDR, device="cpu")


@pytest.fixture(scope="module")
def options(model: Model) -> dict[str, Any]:
    """Options that change each output: half of the tokens, and all that begin the outputs without these."""
    plain = model.translate(TEXTS, return_scores=True)
    used = sorted({token for one in plain for token in one.tokens})[::2]
    others = model.translate(TEXTS, return_scores=True, suppress_tokens=used)
    return {"suppress_tokens": used, "begin_suppress_tokens": sorted({one.tokens[0] for one in others})}


def test_calls_and_load_suppress_tokens(model: Model, options: dict[str, Any]) -> None:
    translations = model.translate(TEXTS, return_scores=True, **options)
    found = [one.text for one in translations]
    for translation in translations:
        assert not {*options["suppress_tokens"]} & {*translation.tokens}
        assert translation.tokens[0] not in options["begin_suppress_tokens"]
    plain = model.translate(TEXTS)
    assert all(one != other for one, other in zip(found, plain, strict=True))
    loaded = fairseq_plugins.load(CLDR, device="cpu", decoder="greedy", no_compiled_steps=True, **options)
    assert loaded.translate(TEXTS) == found
    assert loaded.translate(TEXTS, suppress_tokens=None, begin_suppress_tokens=None) == plain
    assert [list(model.stream(text, **options))[-1].text for text in TEXTS] == found
    with model.service() as service:
        assert [service.submit(text, **options).result().text for text in TEXTS] == found
        assert [service.submit(text).result().text for text in TEXTS] == plain


def test_beam_search_is_fairseqs(options: dict[str, Any]) -> None:
    given = {"suppress_tokens": options["suppress_tokens"], "beam": 3}
    ours, theirs = (fairseq_plugins.load(CLDR, device="cpu", decoder=name) for name in ("fast-beam", "beam"))
    assert ours.translate(TEXTS, **given) == theirs.translate(TEXTS, **given) != theirs.translate(TEXTS, beam=3)


def test_commands_suppress_tokens(model: Model, options: dict[str, Any], tmp_path: Path) -> None:
    source, output = tmp_path / "source", tmp_path / "output"
    source.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    tokens = " ".join(options["suppress_tokens"])
    run([str(CLDR), "--input", str(source), "--output", str(output), "--set", f"suppress_tokens={tokens}"])
    expected = model.translate(TEXTS, suppress_tokens=tokens)
    assert output.read_text(encoding="utf-8").splitlines() == expected
    lines = run_in_process(
        "interactive",
        f"{CLDR} --task spec_dec --decoder greedy --path {CLDR}/verifier.pt --source-lang en --target-lang de --cpu "
        f"--bpe sentencepiece --sentencepiece-model {CLDR}/subwords.model",
        "--suppress-tokens", tokens, input=source.read_text(encoding="utf-8"),
    ).stdout.splitlines()  # fmt: skip
    assert [line.split("\t")[2] for line in lines if line.startswith("D-")] == expected


def test_mistakes(model: Model) -> None:
    with pytest.raises(ConfigurationError, match='suppress_tokens="none-such": is not in the target'):
        model.translate("week", suppress_tokens=["none-such"])
    with pytest.raises(ConfigurationError, match='begin_suppress_tokens="none-such": is not in the target'):
        fairseq_plugins.load(CLDR, device="cpu", begin_suppress_tokens="none-such")
    with pytest.raises(ConfigurationError, match="suppress_tokens=3: give"):
        model.translate("week", suppress_tokens=3)  # type: ignore[call-overload]
    search = fairseq_plugins.load(CLDR, device="cpu", decoder="beam")
    with pytest.raises(ConfigurationError, match=r'begin_suppress_tokens=?: is not for .*decoder="fast-beam"'):
        search.translate("week", begin_suppress_tokens=[model.tokenize("week")[0]])
    with pytest.raises(ConfigurationError, match='begin_suppress_tokens="</s>": is not for decoder="beam"'):
        fairseq_plugins.load(CLDR, device="cpu", decoder="beam", begin_suppress_tokens="</s>")
