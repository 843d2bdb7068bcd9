"""Write the model card checkpoints/NAME/README.md (files, data, recipe, commands, scores), languages and checksums.

It is made from the recipe's measurements in results/NAME and the models in checkpoints/NAME.
"""

import json
import subprocess
import textwrap
from pathlib import Path

import torch
from tabulate import tabulate

from fairseq_plugins.conversion.settings import LoadSettings
from fairseq_plugins.shared.checksums import write_sums
from fairseq_plugins.shared.files import write_atomically

COLUMNS = 120  # line width of the text around tables


def model_rows(folder: Path) -> list[list[str]]:
    """Return file name, parameters and size of a folder's models; blockwise.pt is optional."""
    rows = []
    for name in ("verifier", "drafter", "blockwise"):
        file = folder / f"{name}.pt"
        if name == "blockwise" and not file.exists():
            continue
        weights = torch.load(file, map_location="cpu")["model"]
        # Tied weights count once, also where a file has a copy under each name.
        different = {(w.shape, w.numpy().tobytes()): w.numel() for w in weights.values() if w.is_floating_point()}
        count = sum(different.values())
        rows.append([file.name, f"{count / 1e6:.1f} M", f"{file.stat().st_size / 1e6:.1f} MB"])
    return rows


def score_rows(results: Path) -> list[list[str]]:
    """Return decoder, metric, value and signature of all scores of spec-dec-metrics in a folder."""
    rows = []
    for file in sorted((results / "test").glob("*.json")):
        for score in json.loads(file.read_text(encoding="utf-8"))["scores"]:
            # A bare | would begin another cell.
            rows.append([file.stem, score["metric"], score["shown"], score["signature"].replace("|", "\\|")])
    return rows


def wrapped(text: str) -> str:
    """Wrap the list items of a text at `COLUMNS` columns; table rows and other lines stay whole."""
    wrapper = textwrap.TextWrapper(COLUMNS, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(wrapper.fill(line) if line.startswith("- ") else line for line in text.splitlines())


def commit() -> str:
    """Return the commit of the repository, with a note if files other than checkpoints have changed since."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!checkpoints")
    return (git("rev-parse", "HEAD") or "not in a git repository") + (" with local changes" if changed else "")


def card(name: str, licence: str, recipe: str) -> str:
    """Return the text of the card; arguments as for `write`."""
    folder, results = Path("checkpoints") / name, Path("results") / name
    scores = score_rows(results)
    parts = [
        f"# {name}",
        "A verifier (a fairseq Transformer) and the drafter trained for it, in half precision without optimiser state. "
        "Loading\nchecks the files against `SHA256SUMS`, as `sha256sum --check SHA256SUMS` does.",
        tabulate(model_rows(folder), ["file", "parameters", "size"], tablefmt="github"),
        wrapped(f"- Data: {name}. Licence: {licence}\n- Recipe: `{recipe}`, commit {commit()}"),
        "Translate what you type:",
        f"    spec-dec-translate {folder}",
        "Decoders on the test set:",
        wrapped((results / "table.md").read_text(encoding="utf-8").strip()),
    ]
    if scores:
        header = ["decoder", "metric", "value", "signature"]
        parts += ["Scores:", tabulate(scores, header, tablefmt="github", disable_numparse=True)]
    return "\n\n".join(parts) + "\n"


def write(
    name: str,
    *,
    languages: tuple[str, str],
    licence: str,
    recipe: str,
) -> None:
    """Write README.md, load.json (the languages, which NAME need not tell) and SHA256SUMS to checkpoints/NAME.

    Args:
        name: name of the data and the results.
        languages: of source and target, as in the names of the dictionaries.
        licence: licence of the data.
        recipe: command that made the models.

    Raises:
        ConfigurationError: if they cannot be written.
    """
    folder, (source, target) = Path("checkpoints") / name, languages
    write_atomically(folder / "README.md", card(name, licence, recipe), "checkpoints")
    LoadSettings(options={"source_lang": source, "target_lang": target}).write(folder)
    write_sums(folder)
