"""Settings of all tests, and the tiny corpus and checkpoints that the command-line tests share.

Nothing here imports torch at once: the process that hands tests out to others does not need it.
"""

import gc
import os
import random
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import command_server
from tests.sharing import made_once

# Many small models: threads cost more than they give.
os.environ["OMP_NUM_THREADS"] = "1"

# A shell's background jobs ignore it, and so would the programs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SPREAD = "PYTEST_XDIST_WORKER" in os.environ
"""Whether this is one of several processes that share the tests."""

TINY = (
    "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 32 --decoder-embed-dim 32 --encoder-ffn-embed-dim 48 "
    "--decoder-ffn-embed-dim 48 --encoder-attention-heads 2 --decoder-attention-heads 2 --dropout 0"
)
"""Sizes of the models of the command-line tests."""

TRAINING = (
    "--optimizer adam --lr 0.02 --lr-scheduler inverse_sqrt --warmup-updates 20 --max-tokens 600 --seed 3 "
    "--no-progress-bar --log-interval 1000 --num-workers 0 --no-epoch-checkpoints --cpu "
    "--validate-interval 10 --save-interval 10 "
    # By default fairseq leaves out a last batch that is not a multiple of 8.
    "--required-batch-size-multiple 1"
)
"""Training options of the command-line tests."""


@dataclass(frozen=True)
class Corpus:
    """A binarised toy language and models for it, trained through fairseq's own commands.

    Attributes:
        data: the binarised corpus: a line counts words from any of 25, in steps of 1 or 7; the target in capitals.
        text: folder of the raw text, files `train.src` and so on.
        other_data: the same text with dictionaries in another order, of the same size.
        verifier: checkpoint of a stock `translation` transformer, trained without the plugin.
        drafter: checkpoint of a `block_nat` drafter that shares the verifier's encoder, trained for blocks of 6.
        own_encoder: checkpoint of a `block_nat` drafter with an encoder of its own and attention "full".
        training_log: what training the drafter printed.
    """

    data: Path
    text: Path
    other_data: Path
    verifier: Path
    drafter: Path
    own_encoder: Path
    training_log: str


def _write_text(folder: Path) -> None:
    generator = random.Random(1)
    words = [f"{first}{second}" for first in "bdfgk" for second in "aeiou"]
    for split, count in (("train", 300), ("valid", 30), ("test", 36)):
        lines = []
        for _ in range(count):
            begin, step, length = generator.randrange(25), generator.choice([1, 1, 1, 7]), generator.randint(1, 14)
            lines.append([words[(begin + step * place) % 25] for place in range(length)])
        (folder / f"{split}.src").write_text("".join(" ".join(line) + "\n" for line in lines))
        (folder / f"{split}.tgt").write_text("".join(" ".join(line).upper() + "\n" for line in lines))


def _preprocess(text: Path, out: Path, *more: str) -> None:
    from tests.support import run_in_process

    prefixes = [f"--{split}pref" for split in ("train", "valid", "test")]
    files = [str(text / split) for split in ("train", "valid", "test")]
    pairs = [item for pair in zip(prefixes, files, strict=True) for item in pair]
    run_in_process("preprocess", f"--source-lang src --target-lang tgt --destdir {out} --workers 1", *pairs, *more)


def _make_corpus(folder: Path) -> None:
    """Fill the folder that `corpus` gives out."""
    from tests.support import run_in_process

    text, data, other = folder / "text", folder / "data", folder / "other"
    text.mkdir()
    _write_text(text)
    _preprocess(text, data)
    other.mkdir()
    for side in ("src", "tgt"):
        lines = (data / f"dict.{side}.txt").read_text().splitlines(keepends=True)
        (other / f"reversed.{side}").write_text("".join(reversed(lines)))
    _preprocess(text, other, "--srcdict", f"{other}/reversed.src", "--tgtdict", f"{other}/reversed.tgt")

    verifier = folder / "verifier"
    run_in_process(
        "train",
        f"{data} --task translation --arch transformer {TINY} {TRAINING} --criterion cross_entropy "
        f"--max-update 150 --save-dir {verifier}",
        plugin=False,
    )
    drafter, own = folder / "drafter", folder / "own"
    log = run_in_process(
        "train",
        f"{data} --task spec_dec --arch block_nat {TINY} {TRAINING} --criterion glat_loss --max-update 150 "
        f"--block-size 6 --blocks-per-sentence 3 --share-encoder --verifier-path {verifier}/checkpoint_best.pt "
        "--best-checkpoint-metric tokens_per_iteration --maximize-best-checkpoint-metric "
        f"--save-dir {drafter}",
    )
    (folder / "log").write_text(log.stdout + log.stderr)
    run_in_process(
        "train",
        f"{data} --task spec_dec --arch block_nat {TINY} {TRAINING} --criterion glat_loss --max-update 30 "
        f"--block-size 6 --drafter-attention full --activation-fn relu --save-dir {own} "
        f"--init-encoder-from {verifier}/checkpoint_best.pt --init-decoder-from {verifier}/checkpoint_best.pt",
    )


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """The toy corpus and its models."""
    folder = made_once(tmp_path_factory, "corpus", _make_corpus)
    models = [folder / name / "checkpoint_best.pt" for name in ("verifier", "drafter", "own")]
    return Corpus(folder / "data", folder / "text", folder / "other", *models, (folder / "log").read_text())


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of quick console commands, to be put first on PATH."""
    owner = os.getppid() if SPREAD else os.getpid()
    return made_once(tmp_path_factory, "commands", lambda folder: command_server.start(folder, owner)) / "bin"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the repository, as far as recipes need it, so that their outputs go elsewhere."""
    shutil.copytree(command_server.REPOSITORY / "train_scripts", tmp_path / "train_scripts")
    (tmp_path / "fairseq_plugins").symlink_to(command_server.REPOSITORY / "fairseq_plugins")
    return tmp_path


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests that share what their module makes once stay together: else every process would make it."""
    if SPREAD and isinstance(item, pytest.Function) and item.get_closest_marker("xdist_group") is None:
        fixtures = item._fixtureinfo.name2fixturedefs.values()
        if any(definitions[-1].scope == "module" for definitions in fixtures):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that are spread over processes begin with the long ones, so that none of these is left at the end."""
    if not SPREAD:
        return
    items.sort(key=lambda item: [item.get_closest_marker(name) is None for name in ("slow", "xdist_group")])
    for item in items:
        group = item.get_closest_marker("xdist_group")
        if group is not None and not item.nodeid.endswith(f"@{group.args[0]}"):
            # pytest-xdist 3.8 writes this to an attribute that pytest 9 does not read, and no group stays together.
            item._id = type(item.id).parse(f"{item.nodeid}@{group.args[0]}")


def pytest_collection_finish() -> None:
    """What has been imported stays: tests that collect garbage need not look at its 300,000 objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def registries() -> Iterator[None]:
    """What fairseq knows of tasks, as it was before."""
    from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY
    from hydra.core.config_store import ConfigStore

    stored = ConfigStore.instance().repo["task"]
    before = [(registry, dict(registry)) for registry in (TASK_REGISTRY, TASK_DATACLASS_REGISTRY, stored)]
    yield
    for registry, entries in before:
        registry.clear()
        registry.update(entries)


@pytest.fixture(scope="session")
def device_guard(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let PyTorch ask a pretended GPU which device is current."""
    from tests.pretended_gpu import build_device_guard, load_device_guard

    load_device_guard(made_once(tmp_path_factory, "device-guard", build_device_guard))
