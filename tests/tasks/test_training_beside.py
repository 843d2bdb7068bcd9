"""A drafter for a model of another task trains from one command of fairseq, and drafts without changing the output."""

import random
import shlex
from pathlib import Path

import pytest

import fairseq_plugins
from fairseq_plugins.tasks.beside import add_decoder, task_beside_decoder, trains_drafter
from tests.api.test_other_tasks import arguments
from tests.errors import refused
from tests.families import FAMILIES, VOCABULARY
from tests.support import run_in_process

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("registries")]  # of hydra's warnings

TRAINING = (
    "--arch block_nat --criterion glat_loss --drafter-context features --block-size 4 --blocks-per-sentence 2 "
    "--optimizer adam --lr 0.01 --max-update 20 --max-tokens 400 --cpu --num-workers 0 --no-progress-bar "
    "--no-epoch-checkpoints --validate-interval 100"
)


@pytest.mark.parametrize("name", ["m2m", "mbart25"])
def test_drafter_of_twenty_updates(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    _, model = family.save(tmp_path)
    symbols = [f"w{number}" for number in range(VOCABULARY - 4)]
    draw = random.Random(1)
    text = [" ".join(draw.choices(symbols, k=draw.randint(1, 9))) for _ in range(60)]
    add_decoder(family.task, trains=True)
    given = arguments(family, tmp_path)
    expected = fairseq_plugins.load(decoder="beam", **given).translate(text, beam=1)
    for split, part in (("train", slice(40)), ("valid", slice(40, 60))):
        for language, lines in (("en", text), ("de", expected)):
            (tmp_path / f"{split}.{language}").write_text("".join(f"{line}\n" for line in lines[part]))
    sets = f"--trainpref {tmp_path}/train --validpref {tmp_path}/valid --destdir {tmp_path}/data --workers 1"
    dictionaries = f"--srcdict {tmp_path}/dict.en.txt --tgtdict {tmp_path}/dict.de.txt"
    run_in_process("preprocess", f"-s en -t de {sets} {dictionaries}")
    options = f"--task {family.task} {shlex.join(family.arguments(tmp_path))} --verifier-path {tmp_path}/model.pt"
    log = run_in_process("train", f"{tmp_path}/data {options} {TRAINING} --save-dir {tmp_path}/drafter").stderr
    assert "tokens_per_iteration" in log
    gad = fairseq_plugins.load(
        drafter=tmp_path / "drafter/checkpoint_last.pt", decoder="gad", fixed_width=True, **given
    )
    assert gad.translate(text) == expected
    accepted = gad.statistics.tokens_per_iteration
    assert any(step.drafted for step in gad.stream(text[0]))
    # A random mBART-25 does not end its outputs as data for it do, with two tokens.
    assert name == "mbart25" or (accepted is not None and accepted > 1.05)


@pytest.mark.parametrize(
    ("task", "more", "message"),
    [
        ("multilingual_translation", "--lang-pairs en-de", "trains a model for each pair of languages"),
        ("translation_multi_simple_epoch", "--lang-pairs en-de", "--lang-pairs: .* add its --source-lang"),
    ],
)
def test_what_has_no_drafter_is_refused(task: str, more: str, message: str, tmp_path: Path) -> None:
    add_decoder(task, trains=True)
    with refused(message):
        run_in_process("train", f"{tmp_path} --task {task} {more} {TRAINING} --save-dir {tmp_path}/drafter")


@pytest.mark.parametrize("arch", ["--arch block_nat", "-a block_nat_base", "--arch=block_nat"])
def test_training_of_a_drafter_is_told_by_its_architecture(arch: str) -> None:
    line = f"fairseq-train DATA --task speech_to_text {arch}".split()
    assert trains_drafter(line) and task_beside_decoder(line) == "speech_to_text"
    assert not trains_drafter("fairseq-train DATA --arch transformer".split())
