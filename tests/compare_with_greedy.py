"""Compare token ids of lossless decoders in half precision with those of our `greedy` on one sentence at a time.

    python tests/compare_with_greedy.py DATA_BIN --path VERIFIER.pt --drafter-path DRAFTER.pt [--decoders gad,jacobi]

Each decoder runs in each precision, batch size and, if it has one, block size. A line for each gives the number of
equal outputs. The exit status is 1 if an output differs.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from fairseq_plugins.decoding import methods  # noqa: E402
from fairseq_plugins.shared.parsing import as_config, generation_parser, parse_arguments  # noqa: E402
from fairseq_plugins.shared.session import Session  # noqa: E402

DECODERS = ("greedy", "gad", "iad", "jacobi", "gs-jacobi", "hybrid-jacobi")


def get_parser() -> argparse.ArgumentParser:
    """Return fairseq-generate's parser with the options of the comparison."""
    parser = generation_parser("compare_with_greedy")
    add = parser.add_argument
    add("--decoders", default=",".join(DECODERS), help="comma-separated (default: %(default)s)")
    add("--precisions", default="fp16,bf16", help="comma-separated, of fp32, fp16 and bf16 (default: %(default)s)")
    add("--batch-sizes", default="1,7,32", help="comma-separated (default: %(default)s)")
    add("--block-sizes", default="3,5,10", help="comma-separated (default: %(default)s)")
    add("--sentences", type=int, default=0, help="only the first N (default: 0, all)")
    return parser


@dataclass(frozen=True)
class Run:
    """One setting of a decoder."""

    decoder: str
    batch_size: int
    block_size: int | None

    def __str__(self) -> str:
        width = "" if self.block_size is None else f", k = {self.block_size}"
        return f"{self.decoder}, batch {self.batch_size}{width}"


def runs(args: argparse.Namespace) -> Iterator[Run]:
    """Yield all settings of the command line."""
    for decoder in args.decoders.split(","):
        has_width = any(option.name == "block_size" for option in fields(methods.find(decoder).options))
        widths = list(map(int, args.block_sizes.split(","))) if has_width else [None]
        for batch_size in map(int, args.batch_sizes.split(",")):
            yield from (Run(decoder, batch_size, width) for width in widths)


def decode(session: Session, drafter: str | None, run: Run, limit: int) -> dict[int, list[int]]:
    """Return the token ids of each sentence."""
    needs_drafter = methods.find(run.decoder).needs_drafter(methods.find(run.decoder).options())
    session.task.cfg.update(
        decoding_method=run.decoder,
        block_size=run.block_size,
        drafter_path=drafter if needs_drafter else None,
        # Verify all k drafted tokens, without the policy.
        fixed_width=run.decoder == "gad",
    )
    generator = session.generator()
    dataset = session.task.dataset(session.cfg.dataset.gen_subset)
    order = [number for number in session.usable(dataset) if not limit or number < limit]
    outputs = {}
    for sample in session.batches(dataset, order, run.batch_size):
        for number, (best, *_) in zip(sample["id"].tolist(), session.decode(generator, sample), strict=True):
            outputs[number] = best["tokens"].tolist()
    return outputs


def session_in(precision: str, cfg: Any) -> Session:
    """Return a session with the models in a precision."""
    cfg.common.update(fp16=precision == "fp16", bf16=precision == "bf16")
    session = Session(cfg)
    session.load(cfg.dataset.gen_subset)
    return session


def main() -> int:
    args = parse_arguments(get_parser(), sys.argv[1:])
    cfg = as_config(args)
    drafter = cfg.task.drafter_path
    cfg.task.update(decoding_method="beam", drafter_path=None)
    all_same = True
    for precision in args.precisions.split(","):
        session = session_in(precision, cfg)
        greedy = decode(session, drafter, Run("greedy", 1, None), args.sentences)
        for run in runs(args):
            outputs = decode(session, drafter, run, args.sentences)
            same = sum(outputs[number] == tokens for number, tokens in greedy.items())
            all_same = all_same and same == len(greedy) == len(outputs)
            print(f"{precision}, {run}: {same} of {len(greedy)} outputs are those of greedy", flush=True)
    return 0 if all_same else 1


if __name__ == "__main__":
    sys.exit(main())
