"""Write README.md beside exported models: what they are, what they were trained on, how they score, how to use them.

    python train_scripts/model_card.py multi30k.en-de en de --subwords unigram --licence "..." --recipe multi30k.sh

Everything in it is read from files: results/NAME (what the recipe measured) and the models in checkpoints/NAME.
"""

import argparse
import hashlib
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch
from tabulate import tabulate

from fairseq_plugins.commands.files import write_atomically

SUBWORD_OPTIONS = {
    "unigram": "--bpe sentencepiece --sentencepiece-model {folder}/subwords.model",
    "bpe": "--bpe sentencepiece --sentencepiece-model {folder}/subwords.model",
    "moses": "--tokenizer moses --bpe subword_nmt --bpe-codes {folder}/bpe.codes",
    "gpt2": "--bpe gpt2",
}


def model_rows(folder: Path) -> list[list[str]]:
    """File, parameters, size and hash of each model."""
    rows = []
    for name in ("verifier", "drafter"):
        file = folder / f"{name}.pt"
        weights = torch.load(file, map_location="cpu")["model"]
        count = sum(value.numel() for value in weights.values() if value.is_floating_point())
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        rows.append([file.name, f"{count / 1e6:.1f} M", f"{file.stat().st_size / 1e6:.1f} MB", f"`{digest}`"])
    return rows


def score_rows(results: Path) -> list[list[str]]:
    """Decoder, metric, value and signature from what spec-dec-metrics wrote."""
    rows = []
    for file in sorted((results / "test").glob("*.json")):
        for score in json.loads(file.read_text(encoding="utf-8"))["scores"]:
            rows.append([file.stem, score["metric"], score["shown"], score["signature"]])
    return rows


def commit() -> str:
    """The commit of the repository; with a note when files other than models and cards differ from it."""
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!checkpoints")
    return (git("rev-parse", "HEAD") or "not in a git repository") + (" with local changes" if changed else "")


def card(args: argparse.Namespace) -> str:
    """The text of the card."""
    folder, results = Path("checkpoints") / args.name, Path("results") / args.name
    subwords = SUBWORD_OPTIONS[args.subwords].format(folder=folder)
    table = (results / "table.md").read_text(encoding="utf-8").strip()
    parts = [
        f"# {args.name}",
        "A verifier (an ordinary fairseq Transformer) and the drafter trained for it, in half precision and without "
        "optimiser state.",
        tabulate(model_rows(folder), ["file", "parameters", "size", "sha256"], tablefmt="github"),
        f"- Data: {args.name}. Licence: {args.licence}\n- Recipe: `{args.recipe}`, commit {commit()}",
        "Translate what you type:",
        f"    fairseq-interactive {folder} --source-lang {args.source} --target-lang {args.target} \\\n"
        "        --user-dir fairseq_plugins --task spec_dec --decoder gad \\\n"
        f"        --path {folder}/verifier.pt --drafter-path {folder}/drafter.pt \\\n"
        f"        {subwords}",
        "Decoders on the test set:",
        table,
        "Scores:",
        tabulate(
            score_rows(results),
            ["decoder", "metric", "value", "signature"],
            tablefmt="github",
            disable_numparse=True,
        ),
    ]
    return "\n\n".join(parts) + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    """Write checkpoints/NAME/README.md."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    for name in ("name", "source", "target"):
        parser.add_argument(name)
    parser.add_argument("--subwords", required=True, choices=sorted(SUBWORD_OPTIONS))
    parser.add_argument("--licence", required=True, help="of the data")
    parser.add_argument("--recipe", required=True)
    args = parser.parse_args(argv)
    write_atomically(Path("checkpoints") / args.name / "README.md", card(args), "checkpoints")


if __name__ == "__main__":
    main()
