"""Suppressed tokens in the API and the commands."""

from pathlib import Path

import pytest

from fairseq_plugins.translation.cli import main
from tests.api.released import CLDR, interactive, loaded
from tests.errors import refused

TEXTS = ["Austrian German", "the day before yesterday", "in 3 months", "Chinese (Traditional)"]


def used_tokens() -> list[str]:
    """Return half of the tokens of the outputs: without them, each output changes."""
    plain = loaded(folder=CLDR).translate(TEXTS, return_scores=True)
    return sorted({token for one in plain for token in one.tokens})[::2]


def test_calls_and_load_suppress_tokens() -> None:
    model, used = loaded(folder=CLDR), used_tokens()
    others = model.translate(TEXTS, return_scores=True, suppress_tokens=used)
    options = {"suppress_tokens": used, "begin_suppress_tokens": sorted({one.tokens[0] for one in others})}
    translations = model.translate(TEXTS, return_scores=True, **options)
    found = [one.text for one in translations]
    for translation in translations:
        assert not {*used} & {*translation.tokens}
        assert translation.tokens[0] not in options["begin_suppress_tokens"]
    plain = model.translate(TEXTS)
    assert all(one != other for one, other in zip(found, plain, strict=True))
    given = {name: " ".join(tokens) for name, tokens in options.items()}
    in_pytorch = loaded("greedy", CLDR, no_compiled_steps=True, **given)
    assert in_pytorch.translate(TEXTS) == found
    assert in_pytorch.translate(TEXTS, suppress_tokens=None, begin_suppress_tokens=None) == plain
    assert [list(model.stream(text, **options))[-1].text for text in TEXTS] == found
    with model.service() as service:
        assert [service.submit(text, **options).result().text for text in TEXTS] == found
        assert [service.submit(text).result().text for text in TEXTS] == plain
    ours, theirs = (loaded(name, CLDR) for name in ("fast-beam", "beam"))
    only = {"suppress_tokens": used, "beam": 3}
    assert ours.translate(TEXTS, **only) == theirs.translate(TEXTS, **only) != theirs.translate(TEXTS, beam=3)


def test_commands_suppress_tokens(tmp_path: Path) -> None:
    source, output, tokens = tmp_path / "source", tmp_path / "output", " ".join(used_tokens())
    source.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    arguments = ["--input", str(source), "--output", str(output), "--set", f"suppress_tokens={tokens}"]
    assert main([str(CLDR), *arguments]) == 0
    expected = loaded(folder=CLDR).translate(TEXTS, suppress_tokens=tokens)
    assert output.read_text(encoding="utf-8").splitlines() == expected
    found = interactive(CLDR, TEXTS, "--task spec_dec --decoder greedy", "--suppress-tokens", tokens)
    assert [text for _, text in found] == expected


@pytest.mark.parametrize(
    ("of_load", "of_call", "message"),
    [
        ({}, {"suppress_tokens": ["none-such"]}, "suppress.tokens none-such: is not in the target"),
        ({"begin_suppress_tokens": "none-such"}, {}, "begin.suppress.tokens none-such: is not in the target"),
        ({}, {"suppress_tokens": 3}, "suppress.tokens 3: give"),
        ({"decoder": "beam"}, {"suppress_tokens": ["</s>"]}, "suppress.tokens </s>: ends sentences.* fast-beam"),
        ({"decoder": "beam", "suppress_tokens": "</s>"}, {}, "suppress.tokens </s>: ends sentences.* fast-beam"),
        ({"decoder": "beam"}, {"begin_suppress_tokens": ["</s>"]}, "begin.suppress.tokens.*: is not for .*--decoder"),
        ({"decoder": "beam", "begin_suppress_tokens": "</s>"}, {}, "begin.suppress.tokens </s>: is not for --decoder"),
    ],
)
def test_mistakes(of_load: dict, of_call: dict, message: str) -> None:
    with refused(message):
        loaded(folder=CLDR, **of_load).translate("week", **of_call)
