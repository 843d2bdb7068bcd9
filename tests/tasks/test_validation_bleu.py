"""`fairseq-train --eval-bleu` reports stock's BLEU with our decoders: every validation has other weights."""

import re
from pathlib import Path

import pytest
import torch

from fairseq_plugins.tasks.beside import add_decoder
from tests.conftest import TINY, TRAINING, Corpus
from tests.support import run_in_process


@pytest.mark.filterwarnings("ignore")  # of hydra's
@pytest.mark.usefixtures("registries")
def test_bleu_of_three_validations(corpus: Corpus, tmp_path: Path) -> None:
    def bleu(more: str, plugin: bool) -> list[str]:
        log = run_in_process(
            "train",
            f"{corpus.data} --task translation --arch transformer {TINY} {TRAINING} --max-update 75 "
            f'--validate-interval-updates 25 --eval-bleu --eval-bleu-args \'{{"beam": 1, "max_len_b": 20}}\' '
            f"--criterion cross_entropy --save-dir {tmp_path} {more}",
            plugin=plugin,
        )
        # A line may come twice, from the handlers of programs that ran in this process before.
        validations = re.findall(r"bleu ([0-9.]+).*num_updates (\d+)", log.stderr)
        return [score for _, score in sorted({int(updates): score for score, updates in validations}.items())]

    expected = bleu("--no-save", plugin=False)
    add_decoder("translation")
    assert bleu("--decoder greedy", plugin=True) == expected
    assert len(expected) == 3 and len(set(expected)) == 3
    # The counts of BLEU, which are numpy's, are in the checkpoint.
    assert torch.load(tmp_path / "checkpoint_last.pt")["extra_state"]["metrics"]
