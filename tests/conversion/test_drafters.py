"""A drafter for a converted model trains as the manual says, and drafts without changing the output."""

import shutil
from pathlib import Path

import pytest
from fairseq.data import Dictionary
from fairseq.data.data_utils import load_indexed_dataset

import fairseq_plugins
from fairseq_plugins.conversion.convert import convert
from fairseq_plugins.conversion.int8 import write_int8
from fairseq_plugins.distillation import cli as distillation
from tests.conversion.support import first_tokens, languages, names, save_model, sources
from tests.errors import refused
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
    first, forced = ("" if number is None else f"{token[number]} " for number in first_tokens(name))
    data, shards, distilled = (str(tmp_path / folder) for folder in ("data", "shards", "distilled"))
    for split, part in (("train", text[:70]), ("valid", text[70:])):
        (tmp_path / f"{split}.src").write_text("".join(f"{first}{line}\n" for line in part))
    sets = f"--only-source --trainpref {tmp_path}/train --validpref {tmp_path}/valid --srcdict {model}/dict.src.txt"
    run_in_process("preprocess", f"-s src -t tgt {sets} --destdir {data} --workers 1")
    no_dictionary = ["decode", data, "--path", f"{model}/verifier.pt", "--cpu", "--output", shards]
    with refused("no such dictionary; copy that of the model there", Path(data) / "dict.tgt.txt"):
        distillation.run(no_dictionary)
    shutil.copy(model / "dict.tgt.txt", data)
    more = f"--forced-first-token {forced}".split() if forced else []
    subsets = ["--gen-subset", "train,valid"]
    decoding = ["--path", f"{model}/verifier.pt", "--decoder", "greedy", "--cpu", "--max-len-b", f"{LONGEST}"]
    distillation.run(["decode", data, *decoding, "--min-len", "0", *more, *subsets, "--output", shards])
    distillation.run(["merge", data, "--shards", shards, *subsets, "--destdir", distilled])
    dictionary = Dictionary.load(str(model / "dict.tgt.txt"))
    binarised = load_indexed_dataset(f"{distilled}/train.src-tgt.tgt", dictionary)
    assert [dictionary.string(one) for one in binarised] == [f"{forced}{one}" for one in expected[:70] if one]
    trained = f"--verifier-path {model}/verifier.pt --init-decoder-from {model}/verifier.pt"
    trained += f" --save-dir {tmp_path}/drafter"
    for given in ("", "--forced-first-token w5") if forced else ("--forced-first-token w5",):
        with refused(f"--forced-first-token .*: the translations in {distilled} were decoded with"):
            run_in_process("train", f"{distilled} {TRAINING} {trained} {given}")
    with refused("has no target side of valid; give the folder of `spec-dec-distill merge`", data):
        run_in_process("train", f"{data} {TRAINING} {trained}")
    log = run_in_process("train", f"{distilled} {TRAINING} {trained}", *more).stderr
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
    shutil.copy(drafter, model / "drafter.pt")
    (model / "SHA256SUMS").unlink()
    write_int8(model, tmp_path / "int8", None)
    rounded = [
        fairseq_plugins.load(tmp_path / "int8", decoder=decoder, fixed_width=True, **options).translate(text)
        for decoder in ("gad", "jacobi")
    ]
    assert rounded[0] == rounded[1]
