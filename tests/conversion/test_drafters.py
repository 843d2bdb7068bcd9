"""A drafter for a converted model trains from one command of fairseq, and drafts without changing the output."""

from pathlib import Path

import pytest

import fairseq_plugins
from fairseq_plugins.conversion.convert import convert
from tests.conversion.support import first_tokens, languages, names, save_model, sources
from tests.support import run_in_process

LONGEST = 20
TRAINING = (
    "--user-dir fairseq_plugins --task spec_dec --arch block_nat --drafter-context features --criterion glat_loss "
    "--block-size 4 --blocks-per-sentence 2 --optimizer adam --lr 0.01 --max-update 20 --max-tokens 400 --cpu "
    "--num-workers 0 --no-progress-bar --no-epoch-checkpoints --validate-interval 100"
)


@pytest.mark.parametrize("name", ["marian", "nllb"])
def test_drafter_of_twenty_updates(name: str, tmp_path: Path) -> None:
    save_model(name, tmp_path / "hf")
    model, token = tmp_path / "model", names(name)
    convert(tmp_path / "hf", model)
    text = [" ".join(token[number] for number in one) for one in sources(80)]
    options = {"device": "cpu", "max_len_b": LONGEST, **languages(name)}
    expected = fairseq_plugins.load(model, decoder="beam", **options).translate(text, beam=1)
    firsts = ("" if number is None else f"{token[number]} " for number in first_tokens(name))
    for side, first, lines in zip(("src", "tgt"), firsts, (text, expected), strict=True):
        for split, part in (("train", lines[:70]), ("valid", lines[70:])):
            (tmp_path / f"{split}.{side}").write_text("".join(f"{first}{line}\n" for line in part))
    dictionaries = f"--srcdict {model}/dict.src.txt --tgtdict {model}/dict.tgt.txt"
    sets = f"--trainpref {tmp_path}/train --validpref {tmp_path}/valid"
    run_in_process("preprocess", f"-s src -t tgt {sets} {dictionaries} --destdir {tmp_path}/data --workers 1")
    more = f"--verifier-path {model}/verifier.pt --init-decoder-from {model}/verifier.pt --save-dir {tmp_path}/drafter"
    given = languages(name)
    if given:
        more += f" --forced-first-token {given['target_lang']}"
    log = run_in_process("train", f"{tmp_path}/data {TRAINING} {more}").stderr
    assert "tokens_per_iteration" in log
    drafter = tmp_path / "drafter" / "checkpoint_last.pt"
    for kernels in (True, False):
        gad = fairseq_plugins.load(
            model, drafter=drafter, decoder="gad", fixed_width=True, no_compiled_steps=not kernels, **options
        )
        assert gad.backend.startswith("native: ") is kernels
        assert gad.translate(text) == expected
        accepted = gad.statistics.tokens_per_iteration
        assert accepted is not None and accepted > 1.05
