"""`--decoder` beside fairseq's own tasks on the command line."""

import os
import shlex
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path

import pytest
from fairseq.tasks import TASK_REGISTRY

from fairseq_plugins.tasks.beside import add_decoder, task_beside_decoder
from fairseq_plugins.tasks.with_drafts import DecodesWithDrafts
from tests.errors import error_about
from tests.families import FAMILIES
from tests.support import REPOSITORY, run_in_process

SENTENCES = "w3 w9 w4\nw1\nw20 w21 w22 w23 w24 w25\nw7 w8\n"


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
        ("bin/spec-dec-bench DATA --task speech_to_text --path p", "speech_to_text"),
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
    with error_about("--decoder", "--task clashing has another option --block-size; use .*wrap"):
        add_decoder("clashing")


# Family, beam and decoder.
INTERACTIVE = [("m2m", "1", "greedy"), ("bart", "5", "fast-beam")]

# fairseq-interactive for each argument, in forks of a process that has imported fairseq, but no plugin.
COMMANDS = """
import os, shlex, sys
import torch.fx.experimental.symbolic_shapes  # which fairseq's attention imports
from fairseq_cli.interactive import cli_main
from tests import quick_options

quick_options.install()
for number, line in enumerate(sys.argv[1:]):
    if os.fork() == 0:
        for descriptor, name in enumerate(("text", f"{number}.out", f"{number}.err")):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), descriptor)
        sys.argv = ["fairseq-interactive", *shlex.split(line)]
        sys.exit(cli_main())
    assert os.wait()[1] == 0, open(f"{number}.err").read()
"""


@pytest.mark.filterwarnings("ignore")
def test_fairseq_interactive_prints_what_it_prints_without_it(tmp_path: Path) -> None:
    (tmp_path / "text").write_text(SENTENCES)
    lines, expected = [], []
    for name, beam, decoder in INTERACTIVE:
        family, data = FAMILIES[name], tmp_path / name
        data.mkdir()
        family.save(data)
        line = f"{data} --task {family.task} {shlex.join(family.arguments(data))} --path {data}/model.pt --cpu"
        line += f" --beam {beam} --max-len-b 16 --buffer-size 10 --batch-size 4"
        expected.append(run_in_process("interactive", line, input=SENTENCES, plugin=False).stdout)
        lines.append(f"{line} --decoder {decoder} --user-dir {REPOSITORY}/fairseq_plugins")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    subprocess.run([sys.executable, "-W", "ignore", "-c", COMMANDS, *lines], cwd=tmp_path, env=environment, check=True)
    for number, wanted in enumerate(expected):
        assert "native: the compiled kernels" in (tmp_path / f"{number}.err").read_text()
        outputs = (tmp_path / f"{number}.out").read_text(), wanted
        found, others = ([line.split("\t") for line in text.splitlines() if line.startswith("H-")] for text in outputs)
        assert len(found) == 4
        for (*text, score, tokens), (*other_text, other_score, other_tokens) in zip(found, others, strict=True):
            assert (text, tokens) == (other_text, other_tokens)
            assert float(score) == pytest.approx(float(other_score), abs=1e-4)
