"""Scripts that write tables: they resume, tables contain the measurements, bad input is refused."""

import shutil
from pathlib import Path

import pytest

from tests.conftest import Corpus
from tests.test_demo_script import ROOT, _refused, quick, run_recipe

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


@pytest.fixture
def checkout(tmp_path: Path, corpus: Corpus) -> Path:
    """A copy of the repository after a recipe for the toy corpus."""
    for part in ("train_scripts", "fairseq_plugins"):
        (tmp_path / part).symlink_to(ROOT / part)
    shutil.copytree(corpus.data, tmp_path / "data-bin/toy")
    shutil.copytree(corpus.data, tmp_path / "data-bin/toy/distilled")
    (tmp_path / "checkpoints/toy").mkdir(parents=True)
    shutil.copy(corpus.verifier, tmp_path / "checkpoints/toy/verifier.pt")
    return tmp_path


@pytest.mark.slow
def test_blockwise_table(checkout: Path, programs: Path) -> None:
    """All but one model and two decodings exist."""
    cells = checkout / "results/toy/blockwise-table"
    cells.mkdir(parents=True)
    for column in ("frozen-raw", "fine-tuned-raw", "fine-tuned-distilled"):
        (checkout / f"checkpoints/toy/blockwise-table/{column}-2").mkdir(parents=True)
        (cells / f"test-{column}-2").write_text("31.50 200 160 1.25\n")
    options = {"NAME": "toy", "KS": "2", "EPOCHS": "1", "SUBSET": "test", "IDENTITY_FIRST_HEAD": "yes"}
    run = run_recipe("blockwise_table.sh", checkout, **options, **quick(programs))
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("[have]") == 6 and run.stdout.count("[done]") == 3
    table = (checkout / "results/toy/blockwise.md").read_text(encoding="utf-8").splitlines()
    greedy, row = ([cell.strip() for cell in line.split("|")[2:-1]] for line in table[2:4])
    assert row[0] == row[2] == row[3] == "31.50 / 1.25"
    # A frozen base with an identity first head gives the base's output, in at most as many iterations.
    (own, one), (bleu, accepted) = (cell.split(" / ") for cell in (greedy[0], row[1]))
    assert one == "1.00" and bleu == own and 1 <= float(accepted) <= 2
    assert not list(checkout.rglob("*.partial"))


@pytest.mark.slow
def test_jacobi_table(checkout: Path, programs: Path) -> None:
    """Two decodings are missing; an existing one differs from greedy's."""
    cells = checkout / "results/toy/jacobi-table"
    cells.mkdir(parents=True)
    for decoder in ("jacobi", "hybrid-jacobi", "gs-jacobi-pool", "jacobi-pool", "hybrid-jacobi-pool"):
        (cells / f"test-{decoder}").write_text("31.50 400 100 4.00\n")
        (cells / f"test-{decoder}.out").write_text("H-0\t-1\tanother\n")
    run = run_recipe("jacobi_table.sh", checkout, NAME="toy", DECODING_BATCH="12", **quick(programs))
    assert run.returncode == 0, run.stdout + run.stderr
    table = (checkout / "results/toy/jacobi.md").read_text(encoding="utf-8").splitlines()
    rows = {cells[0]: cells[1:] for cells in ([cell.strip() for cell in line.split("|")[1:-1]] for line in table[2:9])}
    assert len(rows) == 7
    assert rows["greedy"][2:] == ["1.00×", "yes"]
    iterations = int(rows["greedy"][1])
    block = rows["gs-jacobi, b = 3"]
    assert block[0] == rows["greedy"][0] and block[3] == "yes"
    assert 0 < int(block[1]) <= iterations and block[2] == f"{iterations / int(block[1]):.2f}×"
    assert rows["jacobi, n-gram pool"] == ["31.50", "100", f"{iterations / 100:.2f}×", "no"]
    assert not (checkout / "checkpoints/toy/jacobi-table").exists()


@pytest.mark.slow
def test_jacobi_table_of_a_trained_verifier(checkout: Path, programs: Path) -> None:
    """All decodings of the verifier before training exist, and most of the one after."""
    cells = checkout / "results/toy/jacobi-table"
    cells.mkdir(parents=True)
    for decoder in (
        "greedy",
        "jacobi",
        "hybrid-jacobi",
        "gs-jacobi",
        "gs-jacobi-pool",
        "jacobi-pool",
        "hybrid-jacobi-pool",
    ):
        for prefix in ("", "trained-"):
            (cells / f"test-{prefix}{decoder}").write_text("31.50 400 100 4.00\n")
            (cells / f"test-{prefix}{decoder}.out").write_text("H-0\t-1\tanother\n")
    for decoder in ("greedy", "jacobi"):
        (cells / f"test-trained-{decoder}").unlink()
    options = {"NAME": "toy", "MINUTES": "1", "UPDATES": "2", "WARMUP_UPDATES": "1", "MAX_TOKENS": "300"}
    run = run_recipe("jacobi_table.sh", checkout, **options, DECODING_BATCH="12", **quick(programs))
    assert run.returncode == 0, run.stdout + run.stderr
    assert (checkout / "checkpoints/toy/jacobi-table/verifier/checkpoint_best.pt").exists()
    table = (checkout / "results/toy/jacobi.md").read_text(encoding="utf-8").splitlines()
    rows = {cells[0]: cells[1:] for cells in ([cell.strip() for cell in line.split("|")[1:-1]] for line in table[2:16])}
    assert len(rows) == 14
    greedy, jacobi = (rows[f"{decoder}, after consistency training"] for decoder in ("greedy", "jacobi"))
    assert greedy[2:] == ["1.00×", "yes"] and jacobi[0] == greedy[0] and jacobi[3] == "yes"
    assert 0 < int(jacobi[1]) <= int(greedy[1])


@pytest.mark.slow
def test_drafter_table(checkout: Path, programs: Path) -> None:
    """The script trains a drafter and decodes with it; a second run has nothing to do."""
    options = {"NAME": "toy", "MINUTES": "0.01", "KS": "3", "BLOCK_SIZE": "3", "TIMED_K": "2", "REPEATS": "1"}
    options |= {"TIMING_SENTENCES": "2", "DRAFTERS": "features-transition", **quick(programs)}
    run = run_recipe("drafter_table.sh", checkout, **options)
    assert run.returncode == 0, run.stdout + run.stderr
    table = (checkout / "results/toy/drafters.md").read_text(encoding="utf-8").splitlines()
    cells = [cell.strip() for cell in table[2].split("|")[1:-1]]
    assert cells[0] == "1 layer, scores of a token given the drafted one before it"
    accepted, updates, milliseconds = (float(cells[n]) for n in (1, 3, 5))
    assert 1 <= accepted <= 4 and updates >= 1 and milliseconds > 0
    again = run_recipe("drafter_table.sh", checkout, **options)
    assert again.returncode == 0 and "[done]" not in again.stdout
    assert (checkout / "results/toy/drafters.md").read_text(encoding="utf-8").splitlines() == table


@pytest.mark.parametrize(
    ("script", "variables", "message"),
    [
        ("blockwise_table.sh", {"NAME": "none"}, "NAME=none: data-bin/none is missing; train the models first"),
        ("blockwise_table.sh", {"KS": "4 1"}, "KS=4 1: 1 is not a block size"),
        ("blockwise_table.sh", {"IDENTITY_FIRST_HEAD": "1"}, "IDENTITY_FIRST_HEAD=1: give yes or no"),
        ("drafter_table.sh", {"NAME": "none"}, "NAME=none: data-bin/none is missing; train the models first"),
        ("jacobi_table.sh", {"NAME": "none"}, "NAME=none: data-bin/none is missing; train the models first"),
        ("jacobi_table.sh", {"BLOCK_SIZE": "0"}, "BLOCK_SIZE=0: give at least 1 token"),
        ("jacobi_table.sh", {"MINUTES": "some"}, "MINUTES=some: give minutes of training"),
    ],
)
def test_bad_input(tmp_path: Path, script: str, variables: dict[str, str], message: str) -> None:
    for part in ("train_scripts", "fairseq_plugins"):
        (tmp_path / part).symlink_to(ROOT / part)
    (tmp_path / "data-bin/toy/distilled").mkdir(parents=True)
    (tmp_path / "checkpoints/toy").mkdir(parents=True)
    (tmp_path / "checkpoints/toy/verifier.pt").touch()
    _refused(run_recipe(script, tmp_path, **{"NAME": "toy", **variables}), message)
