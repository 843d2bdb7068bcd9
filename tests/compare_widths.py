"""Compare `gad` and its policy with `greedy` and fixed widths, each in a new process.

    OMP_NUM_THREADS=1 python tests/compare_widths.py DATA_BIN --path VERIFIER.pt --drafter-path DRAFTER.pt
    OMP_NUM_THREADS=1 python tests/compare_widths.py --replay base

Each row decodes the first sentences of the test set in new processes, in turns with the other rows. The table has the
speed over `greedy` (median of CPU times), tokens per iteration, and the speed of `gad` over the best row.
"""

import argparse
import json
import logging
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from fairseq_plugins.benchmarks import replay  # noqa: E402
from fairseq_plugins.shared.parsing import as_config, generation_parser, parse_arguments  # noqa: E402
from fairseq_plugins.shared.session import Session  # noqa: E402

# Simulated drafts: tokens per iteration with drafts of this width.
_TOKENS, _WIDTH = 4.2, 10


def get_parser() -> argparse.ArgumentParser:
    """Return fairseq-generate's parser with the options of the comparison."""
    parser = generation_parser("compare_widths")
    add = parser.add_argument
    add("--widths", default="2,3,5,8,10", help="fixed widths, comma-separated (default: %(default)s)")
    add("--batch-sizes", default="1,16,64", help="comma-separated (default: %(default)s)")
    add("--sentences", type=int, default=100, help="the first N of the test set (default: %(default)s)")
    add("--repeats", type=int, default=9, help="processes of every row (default: %(default)s)")
    return parser


class Comparison:
    """A loaded verifier and drafter, and the sentences.

    Args:
        session: models and data of the command line.
        sentences: number of sentences of the test set.
        is_replayed: whether drafts are simulated: the verifier's own outputs with errors at random positions.
    """

    def __init__(self, session: Session, sentences: int, is_replayed: bool) -> None:
        self.session, self.is_replayed = session, is_replayed
        self.drafter = session.task.cfg.drafter_path
        self.dataset = session.load("test")
        self.numbers = sorted(session.usable(self.dataset)[:sentences] if is_replayed else range(sentences))
        self.outputs: dict[int, list[int]] = {}
        if is_replayed:
            generator = self.generator("greedy")
            for sample in self.batches(8):
                hypotheses = session.decode(generator, sample)
                pairs = zip(sample["id"].tolist(), hypotheses, strict=True)
                self.outputs.update({number: best[0]["tokens"].tolist() for number, best in pairs})
        # Load the drafter once, before forking.
        self.generator("gad")

    def batches(self, size: int) -> list[dict[str, Any]]:
        """Return the sentences in batches of similar lengths."""
        order = sorted(self.numbers, key=lambda number: self.dataset.src_sizes[number]) if size > 1 else self.numbers
        return list(self.session.batches(self.dataset, order, size))

    def generator(self, row: str) -> Any:
        """Return the generator of a row: greedy, gad, or a fixed width."""
        cfg = self.session.task.cfg
        cfg.decoding_method, cfg.drafter_path = ("greedy", None) if row == "greedy" else ("gad", self.drafter)
        cfg.fixed_width = row.isdigit()
        cfg.block_size = int(row) if row.isdigit() else _WIDTH if self.is_replayed and row == "gad" else None
        generator = self.session.generator()
        if self.is_replayed and row != "greedy":
            share = replay.acceptance_probability(_TOKENS, _WIDTH)
            tokens = sum(share**power for power in range(cfg.block_size + 1))
            replay.replay_drafts(generator, self.outputs, tokens, (4, 5))
        return generator

    def measure(self, row: str, size: int) -> tuple[float, float]:
        """Decode a row in a new process; return its seconds and tokens per iteration."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                generator, samples = self.generator(row), self.batches(size)
                assert generator.backend.name == "native"
                began = time.process_time()
                for sample in samples:
                    self.session.decode(generator, sample)
                taken = time.process_time() - began
                os.write(writer, json.dumps([taken, generator.stats.tokens_per_iteration]).encode())
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            answer = pipe.read()
        os.waitpid(child, 0)
        seconds, tokens = json.loads(answer)
        return seconds, tokens


def line(size: int, seconds: Mapping[str, list[float]], tokens: Mapping[str, float], sentences: int) -> str:
    """Return a line of the table."""
    took = {row: statistics.median(times) for row, times in seconds.items()}
    best = min(value for row, value in took.items() if row != "gad")
    cells = [f"{took['greedy'] / took[row]:.2f} ({tokens[row]:.2f})" for row in took if row != "greedy"]
    return f"| {size} | {sentences / took['greedy']:.1f} | {' | '.join(cells)} | {best / took['gad']:.2f} |"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    is_replayed = "--replay" in arguments
    if is_replayed:
        place = arguments.index("--replay")
        shape = arguments[place + 1]
        folder = REPOSITORY / "data-bin" / "replay"
        arguments[place : place + 2] = replay.prepare(folder, shape, "features", 100, (10, 40), replay.VOCABULARY)
    args = parse_arguments(get_parser(), [*arguments, "--decoder", "gad", "--cpu", "--beam", "1"])
    logging.disable(logging.INFO)
    comparison = Comparison(Session(as_config(args)), args.sentences, is_replayed)
    rows = ["greedy", "gad", *args.widths.split(",")]
    print(f"| batch | greedy, sentences/s | {' | '.join(['gad', *(f'k = {k}' for k in rows[2:])])} | gad over best |")
    print("| --: " * (len(rows) + 2) + "|")
    for size in map(int, args.batch_sizes.split(",")):
        seconds: dict[str, list[float]] = {row: [] for row in rows}
        tokens: dict[str, float] = {}
        for _ in range(args.repeats):
            for row in rows:
                taken, tokens[row] = comparison.measure(row, size)
                seconds[row].append(taken)
        print(line(size, seconds, tokens, len(comparison.numbers)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
