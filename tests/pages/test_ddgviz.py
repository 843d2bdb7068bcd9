"""DDGviz: Jacobi iterations against fairseq's own decoding, the dependency graph, and the page."""

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.pages import ddgviz
from fairseq_plugins.pages.ddg import SOURCE, JacobiTrace, SolvedSentence, trace
from tests.conftest import Corpus
from tests.support import Options, fairseq_greedy, ids, make_generator, make_sample, make_task, make_transformer, scores

# ---------------------------------------------------------------------------------------------- the iterations


def solve(models: list, task: Any, sample: dict, initial: str = "pad", **options: Any) -> JacobiTrace:
    """Return the Jacobi iterations of a sample of one sentence."""
    generator, _ = make_generator(models, task, Options("greedy"), engine=Engine(), **options)
    return trace(generator, sample, initial)


CASES: list[tuple[str, dict[str, Any]]] = [
    ("pad", {"max_len_b": 50}),
    ("unk", {"max_len_b": 50}),
    ("source", {"max_len_b": 50}),
    ("pad", {"max_len_b": 1}),
    ("pad", {"max_len_a": 0.5, "max_len_b": 2}),
    ("unk", {"max_len_b": 40, "min_len": 12, "unk_penalty": -4.0}),
    ("pad", {"max_len_b": 40, "temperature": 2.5}),
    ("pad", {"max_len_b": 200, "min_len": 60}),
]


@pytest.mark.parametrize(("initial", "options"), CASES, ids=str)
@pytest.mark.parametrize("seeds", [(0,), (3,), (5,), (1, 2)])
def test_the_fixed_point_is_the_greedy_output(seeds: tuple[int, ...], initial: str, options: dict[str, Any]) -> None:
    """Of an ensemble, too. Proposition 1: every iteration makes at least one more token final."""
    task = make_task()
    models = [make_transformer(task, seed=seed) for seed in seeds]
    sample = make_sample(task, [3 * seeds[0]], seed=seeds[0])
    solved = solve(models, task, sample, initial, **options)
    greedy = fairseq_greedy(models, task, sample, **options)
    assert solved.tokens == ids(greedy)[0]
    # If all tokens before it were final, a token's probability is that of greedy decoding.
    settled = sum(k < solved.final_at[-1] for k in solved.final_at) + 1
    probability, expected = torch.tensor(solved.probability), scores(greedy)[0].exp()
    torch.testing.assert_close(probability[-1][:settled], expected[:settled], rtol=1e-5, atol=1e-4)
    assert "unk_penalty" in options or 0 <= probability.min() <= probability.max() <= 1 + 1e-6
    assert solved.iterations <= len(solved.tokens)
    assert all(k <= i + 1 for i, k in enumerate(solved.final_at))
    steps = [b - a for a, b in zip([0, *solved.final_at], solved.final_at, strict=False)]
    assert steps[0] == 1 and set(steps) <= {0, 1}
    assert len(solved.predicted) == len(solved.probability) == solved.final_at[-1]
    for i, k in enumerate(solved.final_at):
        assert all(row[: i + 1] == solved.tokens[: i + 1] for row in solved.predicted[k - 1 :])
        assert k == 1 or solved.predicted[k - 2][: i + 1] != solved.tokens[: i + 1]


@pytest.mark.parametrize("seed", range(2))
def test_iterates_are_those_of_the_model_run_by_fairseq(seed: int) -> None:
    task = make_task()
    model = make_transformer(task, seed=seed)
    sample = make_sample(task, [8], seed=seed)
    # fairseq's own forward pass hides pads from attention, so the first guess is not pad here.
    solved = solve([model], task, sample, "unk", max_len_b=40)
    dictionary = task.target_dictionary
    guess = torch.full((1, len(solved.tokens)), dictionary.unk())
    for predicted, probability in zip(solved.predicted, solved.probability, strict=True):
        previous = torch.cat([torch.tensor([[dictionary.eos()]]), guess[:, :-1]], dim=1)
        with torch.no_grad():
            logits, _ = model(**sample["net_input"], prev_output_tokens=previous)
        expected = logits.softmax(-1)[0].gather(1, torch.tensor(solved.tokens)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(probability), expected, rtol=0, atol=1e-4)
        logits[..., dictionary.pad()] = -torch.inf
        logits[:, 0, dictionary.eos()] = -torch.inf  # --min-len 1
        logits[:, 40:, dictionary.eos()] = torch.inf  # --max-len-b
        assert logits.argmax(-1)[0].tolist() == predicted
        guess = torch.tensor([predicted])


def make_trace(final_at: list[int]) -> JacobiTrace:
    """A trace by hand: a token is predicted from the iteration on in which it becomes final."""
    size, rows = len(final_at), range(1, max(final_at) + 1)
    predicted = [[i if k >= final_at[i] else 99 for i in range(size)] for k in rows]
    probability = [[0.4 + 0.05 * (i % 12) if k >= final_at[i] else 0.01 * (i % 30) for i in range(size)] for k in rows]
    return JacobiTrace(list(range(size)), predicted, probability, final_at, min(max(final_at) + 1, size))


def make_sentence(
    labels: str, final_at: list[int], source: str = "a source", output: str | None = None
) -> SolvedSentence:
    """A sentence by hand; labels are separated by spaces."""
    names = labels.split()
    solved = make_trace(final_at)
    predicted = [[names[token] if token < len(names) else "<unk>" for token in row] for row in solved.predicted]
    text = labels.replace(" ", "").replace("▁", " ").replace("</s>", "") if output is None else output
    return SolvedSentence(3, source, text, names, predicted, solved, True)


def test_groups_and_edges_by_hand() -> None:
    solved = make_trace([1, 1, 2, 3, 3, 3])
    assert solved.groups == [[0, 1], [2], [3, 4, 5]]
    assert solved.edges == [(SOURCE, 0), (SOURCE, 1), (0, 2), (1, 2), (2, 3), (2, 4), (2, 5)]


ARABIC = "▁كيف ▁حال ك ▁اليوم ▁يا ▁صديق ي ؟ </s>"
HEBREW = "▁שלום ▁עול ם , ▁מה ▁שלומ ך </s>"
CHINESE = "▁ 今天 天气 很 好 , 我们 去 公园 散步 吧 。 </s>"
LATIN = "▁Ein ▁Mann ▁fährt @@x $5 und $6 \\frac{a}{b} _^ <unk> a_token_that_is_longer_than_all_others & </s>"


def ends(labels: str) -> list[int]:
    """Some iterations for labels, with groups of one, two and three."""
    pattern = [1, 2, 2, 3, 4, 4, 4]
    return [pattern[i % 7] + 4 * (i // 7) for i in range(len(labels.split()))]


SENTENCES = {
    "latin": make_sentence(LATIN, ends(LATIN), source="Costs $5 and $6. " * 12),
    "arabic": make_sentence(ARABIC, ends(ARABIC)),
    "hebrew": make_sentence(HEBREW, ends(HEBREW)),
    "chinese": make_sentence(CHINESE, ends(CHINESE)),
    "one token": make_sentence("</s>", [1], source="", output=""),
    "all at once": make_sentence("▁a " * 50 + "</s>", [1] * 51),
    "long": make_sentence("▁ab " * 79 + "</s>", list(range(1, 41)) + [41] * 20 + list(range(42, 62))),
    "unbroken": make_sentence("▁ab </s>", [1, 2], output="x" * 400),
}


@pytest.mark.parametrize("name", SENTENCES)
def test_the_direction_is_that_of_the_output(name: str) -> None:
    assert SENTENCES[name].right_to_left == (name in ("arabic", "hebrew"))


def test_tokens_cannot_break_the_page() -> None:
    sentence = make_sentence('</script> <!-- & " </s>', [1, 2, 3, 4, 5])
    page = ddgviz.page([sentence])
    data = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.S)
    assert data is not None
    record = json.loads(data[1])[0]
    assert record["labels"] == sentence.labels
    assert record["edges"] == [list(edge) for edge in sentence.trace.edges]


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Restore logging: a command sets it up for the process of all tests."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


def test_command(corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of an ensemble, from another first guess."""
    ensemble = ["--path", f"{corpus.verifier}:{corpus.verifier}", "--jacobi-init", "unk", "--cpu"]
    arguments = [str(corpus.data), *ensemble, "--sentences", "5,0-1,1", "--output", str(tmp_path / "out")]
    assert ddgviz.main(arguments) == 0
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert names == {"ddgviz.html", *(f"sentence-{number}.json" for number in (0, 1, 5))}
    printed = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in printed if line.startswith("|")][2:] == ["5", "0", "1", "mean"]
    for number in (0, 1, 5):
        record = json.loads((tmp_path / "out" / f"sentence-{number}.json").read_text(encoding="utf-8"))
        assert record["sentence"] == number and record["identical_to_fairseq"] is True
        assert record["speed_up"] == len(record["tokens"]) / record["iterations"]
        assert sorted(sum(record["groups"], [])) == list(range(len(record["tokens"])))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--sentences", "36"], "--sentences 36: subset test has 36 sentences; give numbers from 0 to 35"),
        (["--sentences", "three"], "--sentences three: give numbers"),
        (["--sentences", "5-3"], "--sentences 5-3: 5-3 is empty"),
        (["--sentences", "-1"], "--sentences"),
        (["--sentences", ""], "--sentences"),
        (["--gen-subset", "train9"], "--gen-subset train9: no such subset"),
        (["--output", "/proc/nowhere/x"], "--output /proc/nowhere/x/sentence-0.json: cannot be written"),
        (["--path", "nowhere.pt"], "--path nowhere.pt: no such file"),
        (["--path", "{own_encoder}"], "is a drafter"),
        (["--prefix-size", "2"], "--prefix-size 2: cannot be drawn"),
        (["--sampling"], "--sampling: cannot be drawn"),
        (["--lm-path", "lm.pt"], "--lm-path lm.pt: cannot be drawn"),
    ],
)
def test_invalid_options_are_refused(
    corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: list[str], message: str
) -> None:
    given = {"--sentences": "0", "--output": str(tmp_path), "--path": str(corpus.verifier)}
    option, *value = changes
    given |= {option: value[0].format(own_encoder=corpus.own_encoder)} if value else {}
    arguments = [*(f"{name}={text}" for name, text in given.items()), *([] if value else [option])]
    assert ddgviz.main([str(corpus.data), "--cpu", *arguments]) == 2
    captured = capsys.readouterr()
    errors = [line for line in captured.err.splitlines() if "error: " in line]
    assert len(errors) == 1 and message in errors[0]
    assert "Traceback" not in captured.err
