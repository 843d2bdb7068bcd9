"""`--decoder` beside fairseq's own tasks on the command line."""

import os
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path

import pytest
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY
from hydra.core.config_store import ConfigStore

from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.tasks.beside import add_decoder, task_beside_decoder
from fairseq_plugins.tasks.decoding import DecodesWithDrafts
from tests.families import FAMILIES, Family
from tests.support import REPOSITORY

SENTENCES = "w3 w9 w4\nw1\nw20 w21 w22 w23 w24 w25\nw7 w8\n"


@pytest.fixture
def registries() -> Iterator[None]:
    """What fairseq knows of tasks, as it was before."""
    stored = ConfigStore.instance().repo["task"]
    before = [(registry, dict(registry)) for registry in (TASK_REGISTRY, TASK_DATACLASS_REGISTRY, stored)]
    yield
    for registry, entries in before:
        registry.clear()
        registry.update(entries)


@pytest.mark.parametrize(
    ("arguments", "task"),
    [
        ("fairseq-generate DATA --task speech_to_text --decoder greedy", "speech_to_text"),
        (
            "fairseq-generate DATA --task=translation_multi_simple_epoch --decoder=greedy",
            "translation_multi_simple_epoch",
        ),
        ("/usr/bin/fairseq-interactive DATA --decoder greedy", "translation"),
        ("fairseq-generate DATA --task speech_to_text", None),
        ("spec-dec-translate FOLDER --decoder greedy", None),
        ("bin/spec-dec-compare DATA --task speech_to_text --path p", "speech_to_text"),
        ("fairseq-generate DATA --task mine --decoder greedy", None),
        ("", None),
    ],
)
def test_the_task_of_a_command_line(arguments: str, task: str | None) -> None:
    assert task_beside_decoder(arguments.split()) == task


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("name", ["translation", "speech_to_text", "translation_from_pretrained_bart", "denoising"])
def test_tasks_get_the_options_and_keep_their_own(name: str) -> None:
    own, parser = TASK_REGISTRY[name], ArgumentParser()
    own.add_args(parser)
    before = set(parser._option_string_actions)
    add_decoder(name)
    add_decoder(name)
    combined, parser = TASK_REGISTRY[name], ArgumentParser()
    combined.add_args(parser)
    assert issubclass(combined, own) and issubclass(combined, DecodesWithDrafts)
    assert set(parser._option_string_actions) >= before | {"--decoder", "--drafter-path", "--block-size"}


@pytest.mark.usefixtures("registries")
def test_an_option_of_the_same_name_is_refused() -> None:
    class Clashing(TASK_REGISTRY["denoising"]):
        @classmethod
        def add_args(cls, parser: ArgumentParser) -> None:
            parser.add_argument("--block-size")

    TASK_REGISTRY["clashing"] = Clashing
    with pytest.raises(ConfigurationError, match="--task clashing has another option --block-size; use .*wrap"):
        add_decoder("clashing")


def interactive(family: Family, folder: Path, *more: str) -> tuple[list[str], str]:
    """Hypotheses that fairseq-interactive prints, each with its score, and what it logs."""
    run = subprocess.run(
        [
            *(sys.executable, "-W", "ignore", "-m", "fairseq_cli.interactive", str(folder), "--task", family.task),
            *(*family.arguments(folder), "--path", str(folder / "model.pt"), "--cpu", "--max-len-b", "16", *more),
            *("--buffer-size", "10", "--batch-size", "4", "--user-dir", str(REPOSITORY / "fairseq_plugins")),
        ],
        input=SENTENCES,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=200,
    )
    assert run.returncode == 0, run.stderr
    return [line for line in run.stdout.splitlines() if line.startswith("H-")], run.stderr


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "beam", "decoder", "without"),
    [
        ("m2m", "1", "greedy", ()),
        ("bart", "5", "fast-beam", ()),
        # fairseq 0.12 itself cannot set this task up.
        ("mbart25", "1", "jacobi", ("--decoder", "beam")),
    ],
)
def test_fairseq_interactive_prints_what_it_prints_without_it(
    name: str, beam: str, decoder: str, without: tuple[str, ...], tmp_path: Path
) -> None:
    family = FAMILIES[name]
    family.save(tmp_path)
    expected, log = interactive(family, tmp_path, "--beam", beam, *without)
    assert len(expected) == 4 and "native" not in log
    found, log = interactive(family, tmp_path, "--beam", beam, "--decoder", decoder)
    assert "native: the compiled kernels" in log
    for line, other in zip(found, expected, strict=True):
        (number, score, tokens), (other_number, other_score, other_tokens) = line.split("\t"), other.split("\t")
        assert (number, tokens) == (other_number, other_tokens)
        assert float(score) == pytest.approx(float(other_score), abs=1e-4)
