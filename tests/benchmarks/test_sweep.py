"""`spec-dec-sweep`: the table and choosing, and one small real run."""

import json
from pathlib import Path

import pytest

from fairseq_plugins.benchmarks import sweep
from fairseq_plugins.benchmarks.sweep_results import (
    GREEDY,
    Cell,
    CellResult,
    CellResults,
    fastest,
    grid,
    markdown,
    pareto_front,
    recommendations,
)
from tests.conftest import Corpus

# GAD Table 3: tau -> accepted tokens and BLEU with top-3, then with top-5; Table 2 has the rest.
TABLE_3 = {
    1: (7.56, 27.02, 7.58, 27.02),
    2: (8.64, 26.92, 8.77, 26.92),
    3: (9.46, 26.84, 9.72, 26.84),
    4: (10.04, 26.78, 10.50, 26.74),
    5: (10.38, 26.70, 10.99, 26.64),
}
# At τ = 4 both β are on the front, at the others top-5 accepts more, or loses less than top-3 does at a larger τ.
FRONT = {(5, 1), (5, 2), (5, 3), (3, 4), (5, 4), (5, 5)}
BEAM = Cell(baseline="AT (b = 5)")


def _result(tokens: float | None, bleu: float, rate: float) -> CellResult:
    return CellResult(bleu, tokens, 100, 100 / rate)


def _paper() -> CellResults:
    results = {BEAM: _result(None, 26.72, 1.0), Cell(baseline=GREEDY): _result(1.0, 26.62, 1.1)}
    results[Cell(25)] = _result(6.13, 26.62, 3.0)
    for tau, (tokens_3, bleu_3, tokens_5, bleu_5) in TABLE_3.items():
        results[Cell(25, 3, tau)] = _result(tokens_3, bleu_3, tokens_3 / 2)
        results[Cell(25, 5, tau)] = _result(tokens_5, bleu_5, tokens_5 / 2)
    results[Cell(10, 3, 1)] = _result(5.97, 26.68, 3.04)
    return results


def test_table() -> None:
    """Baselines come first; speed is over greedy, and the front is of speed and BLEU."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in markdown(_paper(), 0.2, []).splitlines()[2:16]]
    assert rows[0] == ["AT (b = 5)", "-", "26.72", "+0.10", "1.0", "0.91×", ""]
    assert rows[1] == ["AT, greedy", "1.00", "26.62", "+0.00", "1.1", "1.00×", ""]
    assert rows[2] == ["k = 10, top-3, τ = 1", "5.97", "26.68", "+0.06", "3.0", "2.76×", ""]
    assert rows[3] == ["k = 25, exact", "6.13", "26.62", "+0.00", "3.0", "2.73×", ""]
    assert {row[0] for row in rows if row[-1]} == {f"k = 25, top-{beta}, τ = {tau}" for beta, tau in FRONT}


def test_pareto_front() -> None:
    results = {
        Cell(baseline=GREEDY): _result(1.0, 40.0, 9),
        Cell(1): _result(1.0, 30.0, 1),
        Cell(2): _result(1.0, 29.0, 2),
        Cell(3): _result(1.0, 28.0, 2),  # as fast, worse
        Cell(4): _result(1.0, 29.0, 3),  # beats the second
        Cell(5): _result(1.0, 29.0, 3),  # equals the fourth
    }
    assert pareto_front(results) == {Cell(1), Cell(4)}


def test_recommendations() -> None:
    """At least greedy's 26.62: the paper's fastest is top-5, tau 5. Within 0.2 below: the same."""
    results = _paper()
    assert list(recommendations(results, 0.2).values()) == [Cell(25, 5, 5)] * 2
    results[Cell(25, 5, 5)] = _result(10.99, 26.60, 5.5)
    assert list(recommendations(results, 0.2).values()) == [Cell(25, 5, 4), Cell(25, 5, 5)]
    assert "`--decoder gad++ --block-size 25 --top-beta 5 --tau 4`" in markdown(results, 0.2, [])
    results = {Cell(baseline=GREEDY): _result(1.0, 30.0, 1), Cell(5, 3, 1): _result(3.0, 20.0, 3)}
    assert "none of these; add --top-betas 1" in markdown(results, 0.2, [])
    # A difference behind the second decimal is none.
    assert fastest({Cell(5): _result(3.0, 26.6199, 3)}, 26.62) == Cell(5)


def test_same_outcomes_are_measured_once() -> None:
    """Exact settings of a block size are one, whatever their β and τ."""
    assert grid([2, 4], [1, 3], [0.0, 1.0]) == [Cell(2), Cell(2, 3, 1.0), Cell(4), Cell(4, 3, 1.0)]


def _arguments(corpus: Corpus, folder: Path) -> list[str]:
    models = ["--path", str(corpus.verifier), "--drafter-path", str(corpus.drafter), "--cpu", "--beam", "2"]
    return [str(corpus.data), *models, "--output", str(folder)]


def test_real_sweep(corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid_options = ["--block-sizes", "2,6", "--top-betas", "1,3", "--taus", "0,2", "--sentences", "8"]
    arguments = [*_arguments(corpus, tmp_path), *grid_options]
    assert sweep.main(arguments) == 0
    printed = capsys.readouterr().out
    content = json.loads((tmp_path / "sweep.json").read_text(encoding="utf-8"))
    cells = {(cell["block_size"], cell["top_beta"], cell["tau"]): cell for cell in content["cells"]}
    assert cells.keys() == {(2, 1, 0), (2, 3, 2), (6, 1, 0), (6, 3, 2)}
    greedy = content["baselines"]["greedy"]
    for key in ((2, 1, 0), (6, 1, 0)):
        assert cells[key]["bleu"] == greedy["bleu"]
    # A relaxed run writes another output, perhaps a shorter one: only greedy's single token is a bound.
    assert min(cell["tokens_per_iteration"] for cell in cells.values()) > greedy["tokens_per_iteration"] == 1
    assert content["baselines"]["beam"]["baseline"] == "AT (b = 2)"
    assert content["recommended"]["no_quality_loss"].startswith("--decoder gad")
    assert (tmp_path / "sweep.md").read_text(encoding="utf-8") == "# Sweep\n\n" + printed.rstrip("\n") + "\n"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (["--drafter-path", "none.pt"], "--drafter-path none.pt: no such file; "),
        (["--block-sizes", "2,7"], "--block-size 7: the drafter was trained for blocks of 6; "),
        (["--reference", "none"], "--reference none: no such file; "),
        (["--output", __file__], " is a file; give a folder"),
        (["--stats-file", "x"], "--stats-file x: is for one decoder; "),
        (["--taus", "1,x"], "--taus"),
        (["--taus", "-1"], "--taus"),
        (["--taus", "nan"], "--taus"),
        (["--tolerance", "1,2"], "--tolerance"),
    ],
)
def test_errors(
    changed: list[str], message: str, corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep.main([*_arguments(corpus, tmp_path / "new"), *changed]) == 2
    assert not list(tmp_path.iterdir())
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("spec-dec-sweep: error: ") and message in error


def test_drafter_is_needed(corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep.main([str(corpus.data), "--path", str(corpus.verifier), "--cpu", "--output", str(tmp_path)]) == 2
    assert "--drafter-path: is missing; " in capsys.readouterr().err
