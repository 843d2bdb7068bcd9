"""Compare two checkouts of this project: token ids, positional scores and iterations of every decoder.

    python tests/benchmarks/compare_checkouts.py OLD NEW DATA_BIN --path VERIFIER.pt --drafter-path DRAFTER.pt

OLD and NEW are folders of checkouts. Every decoder runs in both at several batch sizes, each checkout in its own
process; a line for each lists the differences. The exit status is 1 if token ids or iterations differ.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

DECODERS = ("greedy", "fast-beam", "gad", "gad++", "nat", "blockwise", "iad", "jacobi", "gs-jacobi", "hybrid-jacobi")
BEAM = 5  # of fast-beam
# For each sentence: ids and positional scores of all hypotheses, and iterations.
Outputs = dict[str, tuple[list[int], list[float], int]]


def get_parser() -> argparse.ArgumentParser:
    """Return the parser; `--dump` is for the processes that this script starts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs=2, metavar="CHECKOUT", help="two folders, the older one first")
    parser.add_argument("data", help="what fairseq-preprocess wrote")
    parser.add_argument("--path", required=True, help="the verifier")
    parser.add_argument("--drafter-path", help="for gad, gad++ and nat, which are left out without")
    parser.add_argument("--blockwise-path", help="for blockwise, which is left out without")
    parser.add_argument("--decoders", default=",".join(DECODERS), help="comma-separated (default: %(default)s)")
    parser.add_argument("--batch-sizes", default="1,7,32", help="comma-separated (default: %(default)s)")
    parser.add_argument("--sentences", type=int, default=0, help="only the first N (default: 0, all)")
    parser.add_argument("--gen-subset", default="test")
    parser.add_argument("--dump", help=argparse.SUPPRESS)
    return parser


def dump(args: argparse.Namespace, checkout: Path) -> None:
    """Decode with the imported checkout, and write the outputs."""
    sys.path.insert(0, str(checkout))
    from fairseq import checkpoint_utils, options, tasks
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from omegaconf import OmegaConf

    parser = options.get_generation_parser(default_task="spec_dec")
    line = [args.data, "--user-dir", str(checkout / "fairseq_plugins"), "--path", args.path, "--cpu", "--beam", "1"]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, input_args=line))
    task = tasks.setup_task(cfg.task)
    imported = Path(sys.modules["fairseq_plugins"].__file__).parent.parent
    assert imported == checkout, f"{imported} was imported, not {checkout}"
    task.reports_summary = False
    task.load_dataset(args.gen_subset)
    dataset = task.dataset(args.gen_subset)
    results = {}
    for decoder in args.decoders.split(","):
        needs_drafter = decoder in ("gad", "gad++", "nat")
        path = {"blockwise": args.blockwise_path}.get(decoder, args.path)
        if path is None or (needs_drafter and args.drafter_path is None):
            continue
        if decoder == "iad" and task.source_dictionary != task.target_dictionary:
            continue
        models, _ = checkpoint_utils.load_model_ensemble([path], task=task)
        for size in map(int, args.batch_sizes.split(",")):
            with tempfile.TemporaryDirectory() as folder:
                task.cfg.update(
                    decoding_method=decoder,
                    drafter_path=args.drafter_path if needs_drafter else None,
                    preset="high-quality" if decoder == "gad++" else "none",
                    fixed_width=decoder == "gad",
                    stats_file=f"{folder}/stats",
                )
                generation = OmegaConf.merge(cfg.generation, {"beam": BEAM if decoder == "fast-beam" else 1})
                try:
                    generator = task.build_generator(models, generation)
                except ValueError as error:
                    print(f"{decoder}: left out ({error})", file=sys.stderr)
                    break
                outputs = decode(generator, models, dataset, size, args.sentences)
                generator.stats.close()
                lines = map(json.loads, Path(f"{folder}/stats").read_text(encoding="utf-8").splitlines())
                iterations = {line["id"]: line["iterations"] for line in lines}
            results[f"{decoder}, batch {size}"] = {
                number: (*output, iterations[number]) for number, output in outputs.items()
            }
    Path(args.dump).write_text(json.dumps(results), encoding="utf-8")


def decode(generator: Any, models: list, dataset: Any, size: int, limit: int) -> dict[int, tuple[list, list]]:
    """Return token ids and positional scores of every sentence, hypothesis after hypothesis."""
    import torch

    order = [int(number) for number in dataset.ordered_indices()]
    if limit:
        order = [number for number in order if number < limit]
    outputs = {}
    for start in range(0, len(order), size):
        sample = dataset.collater([dataset[number] for number in order[start : start + size]])
        with torch.no_grad():
            hypotheses = generator.generate(models, sample)
        for number, nbest in zip(sample["id"].tolist(), hypotheses, strict=True):
            ids = [token for hypothesis in nbest for token in hypothesis["tokens"].tolist()]
            outputs[number] = ids, [score for hypothesis in nbest for score in hypothesis["positional_scores"].tolist()]
    return outputs


def run(args: argparse.Namespace, checkout: Path) -> dict[str, Outputs]:
    """Return the outputs of one checkout, decoded in a separate process."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "outputs.json"
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        command = [sys.executable, __file__, *sys.argv[1:], "--dump", str(file)]
        subprocess.run(command, env={**environment, "COMPARED_CHECKOUT": str(checkout)}, cwd=folder, check=True)
        return json.loads(file.read_text(encoding="utf-8"))


def compare(old: dict[str, Outputs], new: dict[str, Outputs]) -> bool:
    """Print a line for every decoder and batch size; return whether ids and iterations are the same."""
    same = True
    for name in {**old, **new}:
        if name not in old or name not in new:
            print(f"{name}: only in one of them")
            same = False
            continue
        pairs = [(old[name][number], new[name][number]) for number in old[name]]
        ids = sum(before[0] == after[0] for before, after in pairs)
        iterations = sum(before[2] == after[2] for before, after in pairs)
        gaps = [
            abs(a - b)
            for before, after in pairs
            if before[0] == after[0]
            for a, b in zip(before[1], after[1], strict=True)
        ]
        same = same and ids == iterations == len(pairs)
        print(
            f"{name}: {ids} of {len(pairs)} outputs and {iterations} iteration counts are the same, "
            f"scores differ by at most {max(gaps, default=0):.2g}"
        )
    return same


def main() -> int:
    args = get_parser().parse_args()
    for name in ("data", "path", "drafter_path", "blockwise_path"):
        if getattr(args, name) is not None:
            setattr(args, name, str(Path(getattr(args, name)).resolve()))
    if args.dump:
        dump(args, Path(os.environ["COMPARED_CHECKOUT"]))
        return 0
    # The processes run in other folders, so paths must be absolute.
    named = [args.data, "--path", args.path, "--decoders", args.decoders, "--batch-sizes", args.batch_sizes]
    named += ["--sentences", str(args.sentences), "--gen-subset", args.gen_subset]
    for name in ("drafter", "blockwise"):
        path = getattr(args, f"{name}_path")
        named += [f"--{name}-path", path] if path else []
    checkouts = [Path(folder).resolve() for folder in args.checkouts]
    sys.argv[1:] = [*map(str, checkouts), *named]
    old, new = (run(args, checkout) for checkout in checkouts)
    return 0 if compare(old, new) else 1


if __name__ == "__main__":
    sys.exit(main())
