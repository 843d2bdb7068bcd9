"""Draw which target tokens a model decodes in parallel: DDGviz (Santilli et al. 2023, sections 3.5 and 4.3).

    spec-dec-ddgviz DATA_BIN --path MODEL.pt [--gen-subset test] --sentences 3,17 --output FOLDER

Takes all options of fairseq-generate. FOLDER gets ddgviz.html, an interactive page of all sentences, and a JSON file
for every sentence. Works with any fairseq Transformer or ensemble (--path A.pt:B.pt).
"""

import json
import logging
import re
import statistics
import sys
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from tabulate import tabulate

from fairseq_plugins.checkpoint.session import TaskSession
from fairseq_plugins.errors import ConfigurationError, flag
from fairseq_plugins.pages.ddg import SolvedSentence, edges_between, trace
from fairseq_plugins.pages.template import page_json, template
from fairseq_plugins.shared.cli import CommandParser, run_command
from fairseq_plugins.shared.files import check_folder, write_atomically
from fairseq_plugins.shared.parsing import as_config, check_paths, generation_parser, parse_arguments

logger = logging.getLogger("spec-dec-ddgviz")

GREEDY = "fairseq beam 1"
# Between groups with more edges, only those of the last earlier token are drawn.
MAX_EDGES = 36


def compute(session: TaskSession, dataset: Any, number: int) -> SolvedSentence:
    """Solve one sentence by Jacobi iterations, and check the result against fairseq's own greedy decoding."""
    sample = session.batch(dataset, [number])
    solved = trace(_generator(session, "jacobi"), sample, str(session.cfg.task.jacobi_init))
    expected = session.decode(_generator(session, "beam"), sample)[0][0]["tokens"].tolist()
    symbols = session.task.target_dictionary.symbols
    source = sample["net_input"]["src_tokens"][0].cpu()
    return SolvedSentence(
        number=number,
        source=session.task.source_dictionary.string(source, session.cfg.common_eval.post_process),
        output=session.text(solved.tokens),
        labels=[symbols[token] for token in solved.tokens],
        predicted=[[symbols[token] for token in row] for row in solved.predicted],
        trace=solved,
        identical=solved.tokens == expected,
    )


def _generator(session: TaskSession, decoder: str) -> Any:
    # The loop in PyTorch, whose verifier returns the scores of all tokens.
    session.task.cfg.update({"decoding_method": decoder, "no_compiled_steps": True})
    return session.generator(beam=1, nbest=1)


def summary(sentences: Sequence[SolvedSentence]) -> str:
    """Return a table of tokens, iterations and tokens per iteration."""
    rows = [
        [s.number, len(s.labels), len(s.predicted), s.trace.iterations, s.speed_up, max(map(len, s.trace.groups))]
        for s in sentences
    ]
    means = [statistics.fmean(column) for column in list(zip(*rows, strict=True))[1:]]
    header = ["sentence", "tokens", "fixed point after", "iterations", "speed-up", "largest group"]
    body = [[*map(str, row[:4]), f"{row[4]:.2f}", str(row[5])] for row in rows]
    body.append(["mean", *(f"{mean:.2f}" for mean in means)])
    return tabulate(body, headers=header, tablefmt="github", stralign="right", disable_numparse=True)


def page(sentences: Sequence[SolvedSentence]) -> str:
    """Return the interactive page of all sentences, one self-contained HTML file."""
    data = [
        {**s.as_json(), "edges": edges_between(s.trace.groups, MAX_EDGES), "speed_up": f"{s.speed_up:.2f}"}
        for s in sentences
    ]
    return template("ddgviz.html").replace("@@DATA@@", page_json(data))


NOTE = (
    "iterations: with the last one, which finds nothing changed (eq. 5), at most one per token; "
    "speed-up: tokens per iteration"
)


def sentence_numbers(text: str) -> list[int]:
    """Parse `--sentences 3,17,20-22`; the order is kept. Raises ConfigurationError."""
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None:
            raise ConfigurationError("--sentences", text, remedy="give numbers from 0 and ranges, such as 3,17,20-22")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ConfigurationError("--sentences", text, f"{part.strip()} is empty", "give the lower number first")
        numbers += range(first, last + 1)
    return list(dict.fromkeys(numbers))


def get_parser() -> CommandParser:
    """Return fairseq-generate's parser with our own options added."""
    description = "Draw which target tokens a model can decode in parallel by Jacobi iteration (DDGviz)."
    example = "spec-dec-ddgviz data-bin --path verifier.pt --sentences 0-4 --output drawings"
    parser = generation_parser("spec-dec-ddgviz", description, example)
    add = parser.add_argument_group("DDGviz").add_argument
    sentences = "numbers of sentences, counted from 0 as in fairseq-generate's H- lines"
    add("--sentences", required=True, metavar="N,N-N", help=sentences)
    add("--output", required=True, metavar="FOLDER", help="write ddgviz.html and a JSON file for each sentence there")
    return parser


def check(cfg: DictConfig, numbers: Sequence[int], dataset: Any, usable: Collection[int]) -> None:
    """Raise ConfigurationError for sentences that cannot be drawn."""
    size = len(dataset)
    outside = [number for number in numbers if number >= size]
    if outside:
        problem = f"subset {cfg.dataset.gen_subset} has {size} sentences"
        raise ConfigurationError("--sentences", outside[0], problem, f"give numbers from 0 to {size - 1}")
    too_long = sorted(set(numbers) - set(usable))
    if too_long:
        remedy = "choose another sentence"
        raise ConfigurationError("--sentences", too_long[0], "longer than the model's positions", remedy)


def load(cfg: DictConfig) -> TaskSession:
    """Set up a session with the Jacobi decoder; raises ConfigurationError for options that do not fit."""
    check_paths(cfg)
    for name in ("prefix_size", "sampling", "lm_path"):
        if value := cfg.generation[name]:
            raise ConfigurationError(flag(name), None if value is True else value, "cannot be drawn", "leave it out")
    cfg.task.update(decoding_method="jacobi", drafter_path=None, stats_file=None)
    # Skip sentences that are too long, instead of failing for all.
    cfg.dataset.skip_invalid_size_inputs_valid_test = True
    return TaskSession(cfg)


def run(argv: Sequence[str]) -> None:
    """Parse, compute, draw, print."""
    logger.setLevel(logging.INFO)
    args = parse_arguments(get_parser(), argv)
    cfg = as_config(args)
    numbers, folder = sentence_numbers(args.sentences), Path(args.output)
    check_folder(folder, "--output")
    session = load(cfg)
    dataset = session.load(cfg.dataset.gen_subset)
    check(cfg, numbers, dataset, session.usable(dataset))
    sentences = []
    for number in numbers:
        sentence = compute(session, dataset, number)
        sentences.append(sentence)
        if not sentence.identical:
            logger.warning(
                "sentence %d: the fixed point differs from %s; in fp32 only two tokens of equal score can explain that",
                number,
                GREEDY,
            )
        text = json.dumps(sentence.as_json(), ensure_ascii=False)
        write_atomically(folder / f"sentence-{number}.json", text + "\n", "--output")
    write_atomically(folder / "ddgviz.html", page(sentences), "--output")
    logger.info("%s: written; open it in a browser", folder / "ddgviz.html")
    print(f"{summary(sentences)}\n\n{NOTE}")


main = partial(run_command, "spec-dec-ddgviz", run)


if __name__ == "__main__":
    sys.exit(main())
