"""Run the commands of README and docs, with a toy corpus for placeholders and short trainings.

A block of commands is indented by four spaces; a backslash continues a line. Commands that take long or change the
machine are checked without running them, as far as possible. No command is skipped without a reason.
"""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import Corpus
from tests.pages.trace_samples import SPECIAL, header, note, sentence, write
from tests.support import REPOSITORY
from tests.test_recipes import environment

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")

# Pages whose commands are complete.
RUN_ON = (
    *("README.md", "docs/quickstart.md", "docs/decoders.md", "docs/translating.md"),
    "docs/reuse.md",
    *("docs/training.md", "docs/training-heads.md", "docs/distilling.md", "docs/choosing-k.md"),
    *("docs/benchmarks.md", "docs/metrics.md", "docs/traces.md", "docs/ddgviz.md"),
)
PAGES = (*RUN_ON, *(f"docs/{page}.md" for page in ("python", "index", "recipes", "clusters")), "CONTRIBUTING.md")
# Options added to documented trainings, to shorten them.
SHORT = " --max-update 2 --warmup-updates 1 --cpu --num-workers 0 --max-tokens 300 --no-progress-bar"
STOCK = (
    "--encoder-layers 2 --decoder-layers 2 --encoder-embed-dim 64 --decoder-embed-dim 64 --encoder-attention-heads 4"
    " --decoder-attention-heads 4 --encoder-ffn-embed-dim 96 --decoder-ffn-embed-dim 96 --encoder-normalize-before"
    " --decoder-normalize-before --activation-fn gelu --dropout 0.3"
)
# The same for measurements: edit rates and timings take minutes.
SHORTER = {
    "spec-dec-metrics": "--metrics bleu,chrf",
    "spec-dec-sweep": "--sentences 4 --max-len-b 20",
    "spec-dec-bench": "--timing-sentences 2 --repeats 1 --max-len-b 20",
}
RUN = ("fairseq-generate", "fairseq-train", "spec-dec-", "echo ", "head ", "grep ")


def blocks(page: str, section: str = "") -> list[str]:
    """Return the indented blocks of a page, or of a section and all after it, without indentation."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    text = text[text.index(section) :]
    indented = re.findall(r"(?:^    .*\n|^\n(?=    ))+", text, re.MULTILINE)
    return ["\n".join(line[4:] for line in block.splitlines()).strip() for block in indented]


def commands(page: str) -> list[str]:
    """Return the shell commands of a page, each on one line, without comments."""
    lines = "\n".join(block for block in blocks(page) if "fairseq_plugins." not in block).replace("\\\n", " ")
    stripped = [re.sub(r"(^|\s)#\s.*$", "", line).strip() for line in lines.splitlines()]
    return [" ".join(line.split()) for line in stripped if line]


def runnable(page: str) -> list[str]:
    """Return the complete commands of a page: those without "..." and "[--option]"."""
    return [line for line in commands(page) if line.startswith(RUN) and "..." not in line and "[" not in line]


def filled_in(command: str, corpus: Corpus) -> str:
    """Return a command with files in place of placeholders, and with short trainings."""
    command = command.replace("DISTILLED_BIN", "distilled").replace("DATA_BIN", str(corpus.data))
    for name in ("VERIFIER.pt", "MODEL.pt", "TEACHER.pt"):
        command = command.replace(name, str(corpus.verifier))
    command = command.replace("DRAFTER.pt", str(corpus.drafter))
    command = command.replace("HEADS.pt", "blockwise_transformer/checkpoint_best.pt")
    command = command.replace("SHARDS", "shards").replace("FOLDER", str(corpus.verifier.parent))
    command = command.replace("--block-sizes 4,7,10", "--block-sizes 2,3").replace("--taus 1,2,3,4", "--taus 1")
    for program, short in SHORTER.items():
        command = command.replace(program, f"{program} {short}")
    command = command.replace("--user-dir fairseq_plugins", f"--user-dir {REPOSITORY}/fairseq_plugins")
    if command.startswith("fairseq-train"):
        architecture = command.split("--arch ")[1].split()[0]
        command += f"{SHORT} --save-dir {architecture}"
    return command.replace("checkpoints/", f"{REPOSITORY}/checkpoints/").replace("examples/", f"{REPOSITORY}/examples/")


def test_pages_have_commands() -> None:
    programs = [command.split()[0] for page in RUN_ON for command in runnable(page)]
    assert set(programs) == {
        *("fairseq-generate", "fairseq-train", "spec-dec-distill", "echo", "spec-dec-translate", "head"),
        *("spec-dec-trace", "spec-dec-metrics", "spec-dec-sweep", "spec-dec-ddgviz"),
        *("spec-dec-bench", "grep"),
    }
    assert len(programs) >= 20 and all(runnable(page) for page in RUN_ON)


def run_line(line: str, folder: Path, programs: Path) -> str:
    """Run a command in a shell; return its output."""
    command = ["bash", "-o", "pipefail", "-c", line]
    run = subprocess.run(command, cwd=folder, env=environment(programs), capture_output=True, text=True)
    assert run.returncode == 0, f"{line}\n{run.stdout[-2000:]}{run.stderr[-2000:]}"
    return run.stdout


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN_ON)
def test_commands_run(page: str, corpus: Corpus, programs: Path, tmp_path: Path) -> None:
    """Run a page's commands in one folder in their order, since one reads what another writes."""
    if not any("spec-dec-distill merge" in command for command in runnable(page)):
        (tmp_path / "distilled").symlink_to(corpus.data)
    for command in runnable(page):
        run_line(filled_in(command, corpus), tmp_path, programs)


@pytest.mark.slow
def test_readme_shows_what_its_first_example_prints(programs: Path, tmp_path: Path) -> None:
    (line,) = [command for command in runnable("README.md") if command.startswith("echo ")]
    printed = run_line(line.replace("checkpoints/", f"{REPOSITORY}/checkpoints/"), tmp_path, programs)
    assert f"`{printed.strip()}`" in (REPOSITORY / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_drafter_for_a_stock_verifier_of_other_sizes(corpus: Corpus, programs: Path, tmp_path: Path) -> None:
    """Train a drafter for a checkpoint of fairseq's own with the page's commands, and draft with it."""
    # A few sentences, since an untrained verifier's outputs do not end early.
    for name in ("train.src", "train.tgt", "valid.src", "valid.tgt", "test.src", "test.tgt"):
        lines = (corpus.text / name).read_text().splitlines(keepends=True)
        (tmp_path / name).write_text("".join(lines[:20]))
    dictionaries = f"--srcdict {corpus.data}/dict.src.txt --tgtdict {corpus.data}/dict.tgt.txt"
    sets = "--trainpref train --validpref valid --testpref test"
    run_line(f"fairseq-preprocess -s src -t tgt {sets} {dictionaries} --destdir data", tmp_path, programs)
    plain = f"fairseq-train data --task translation --arch transformer {STOCK} --criterion cross_entropy"
    run_line(f"{plain} --optimizer adam {SHORT} --save-dir stock", tmp_path, programs)
    own = replace(
        corpus,
        data=tmp_path / "data",
        verifier=tmp_path / "stock" / "checkpoint_last.pt",
        drafter=tmp_path / "block_nat" / "checkpoint_last.pt",
    )
    training = [line for line in runnable("docs/training.md") if "blockwise" not in line and "average" not in line]
    assert [line.split()[0] for line in training] == ["spec-dec-distill", "spec-dec-distill", "fairseq-train"]
    for line in training:
        run_line(filled_in(line, own), tmp_path, programs)
    outputs = []
    for decoder in ("greedy", "gad"):
        commands = [line for line in runnable("README.md") if line.startswith("fairseq-generate")]
        (line,) = [line for line in commands if f"--decoder {decoder} " in f"{line} "]
        printed = run_line(filled_in(line, own), tmp_path, programs)
        outputs.append(sorted(row.split("\t")[::2] for row in printed.splitlines() if row.startswith("H-")))
    assert outputs[0] == outputs[1] and len(outputs[0]) == 20


CAPTIONS = ["A group of men are loading cotton onto a truck", "A man sleeping in a green room on a couch.", "Two dogs."]


@pytest.mark.slow
def test_other_text_than_a_drafter_was_trained_for(programs: Path, tmp_path: Path) -> None:
    """Run the commands of the table, in which `greedy` and `gad` have the same output."""
    (tmp_path / "val.en").write_text("".join(f"{caption}\n" for caption in CAPTIONS))
    command, *_ = blocks("docs/notebook/drafters.md", "## Text unlike the training text")
    (tmp_path / "checkpoints").symlink_to(REPOSITORY / "checkpoints")
    run_line(command, tmp_path, programs)  # its `cmp` fails if the outputs of greedy and gad differ
    assert (tmp_path / "cut.en").read_text() == "A group of men are\nA man sleeping in a\nTwo\n"
    assert len((tmp_path / "joined.de").read_text().splitlines()) == 2


@pytest.mark.slow
def test_data_for_a_released_model(programs: Path, tmp_path: Path) -> None:
    """Binarise text as the page says: the model translates it as it translates the text itself."""
    for name in ("checkpoints", "train_scripts"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    (folder := tmp_path / "examples" / "ua-gec").mkdir(parents=True)
    for name in ("test.src", "test.tgt"):
        lines = (REPOSITORY / "examples" / "ua-gec" / name).read_text(encoding="utf-8").splitlines(keepends=True)
        (folder / name).write_text("".join(lines[:9]), encoding="utf-8")
    block, *_ = blocks("docs/benchmarks.md", "### Data for a released model")
    run_line(block, tmp_path, programs)
    options = f"--user-dir {REPOSITORY}/fairseq_plugins --task spec_dec --path checkpoints/ua-gec/verifier.pt"
    found = f"fairseq-generate DATA_BIN {options} --decoder greedy --remove-bpe sentencepiece | grep ^D- | sort -V"
    expected = "spec-dec-translate checkpoints/ua-gec --decoder greedy <examples/ua-gec/test.src"
    lines = run_line(f"{found} | cut -f 3", tmp_path, programs).splitlines()
    assert len(lines) == 9 and lines == run_line(expected, tmp_path, programs).splitlines()


@pytest.mark.parametrize("page", PAGES)
def test_make_knows_its_targets(page: str) -> None:
    for command in commands(page):
        if command.startswith("make "):
            run = subprocess.run(
                ["bash", "-c", f"make --dry-run {command[5:].split('&&')[0]}"],
                cwd=REPOSITORY, capture_output=True, text=True,
            )  # fmt: skip
            assert run.returncode == 0, f"{command}: {run.stderr}"


def test_recipes_say_what_they_would_do(tmp_path: Path) -> None:
    (tmp_path / "train_scripts").symlink_to(REPOSITORY / "train_scripts")
    pages = ("docs/recipes.md", "docs/training.md")
    recipes = [command for page in pages for command in commands(page) if "train_scripts/" in command]
    assert len(recipes) > 4
    for command in recipes:
        run = subprocess.run(
            ["bash", "-c", f"{re.sub('^sbatch( --array=[0-9-]+)?', 'bash', command)} --dry-run"],
            cwd=tmp_path, capture_output=True, text=True,
        )  # fmt: skip
        assert run.returncode == 0 and "spec-dec-" in run.stdout, f"{command}: {run.stderr}"


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_this_project_exist(page: str) -> None:
    for name in re.findall(r"\bspec-dec-[a-z-]+", (REPOSITORY / page).read_text(encoding="utf-8")):
        assert (REPOSITORY / "fairseq_plugins" / "help_texts" / f"{name}.txt").is_file(), name


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md", "docs/python.md", "docs/reuse.md"])
def test_python_runs(
    page: str, corpus: Corpus, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(REPOSITORY)
    variables: dict = {}
    examples = [block for block in blocks(page) if "model." in block or "fairseq_plugins.load" in block]
    assert examples
    for block in examples:
        for name, file in (
            ("checkpoint_best.pt", corpus.verifier),
            ("drafter.pt", corpus.drafter),
            ("data-bin/mytext.en-de", corpus.data),
            ("memory", tmp_path / "memory"),
        ):
            block = block.replace(f'"{name}"', repr(str(file)))
        block = re.sub(r'subwords="[^"]*",.*', "", block)
        exec(block, variables)
    assert capsys.readouterr().out != ""


def test_python_of_traces_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    symbols = [*SPECIAL, "a"]
    slow, fast = [note([4], [4, 4], 1, 1), note([], [2], 0, 1)], [note([4], [4, 2], 1, 2)]
    sentences = [sentence(number, [4, 2], [4, 2], iterations) for number, iterations in enumerate((slow, fast))]
    write(tmp_path / "trace.jsonl", [header(symbols, symbols), *sentences])
    for file, seconds in (("gad.jsonl", 2), ("greedy.jsonl", 3)):
        write(tmp_path / file, [{"id": number, "seconds": seconds} for number in range(3)])
    text = (REPOSITORY / "docs" / "traces.md").read_text(encoding="utf-8")
    for block in re.findall("```python\n(.*?)```", text, re.DOTALL):
        exec(block, {})
    assert capsys.readouterr().out == f"1 ['a', '</s>']\n{[1.5] * 9}\n"


def test_options_of_a_task_are_the_same_in_python() -> None:
    """Without --lang-dict fairseq numbers the languages in another order, and the output is another."""
    command, *others = blocks("docs/models.md")
    (options,) = (block for block in others if "task_options=" in block)
    given = set(re.findall(r"--(lang-[a-z]+|[a-z]+-langtok)", command))
    assert {"lang-dict"} < given == {name.replace("_", "-") for name in re.findall(r'"([a-z]+_[a-z]+)":', options)}
