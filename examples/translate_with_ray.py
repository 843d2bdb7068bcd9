"""Translate a large file on a Ray cluster: Ray Data maps blocks of lines over actors, each with its own model.

    python examples/translate_with_ray.py checkpoints/ua-gec essays.txt corrected.txt --actors 8

All machines must see the file and the model under the same paths. An actor has one CPU, or one GPU with --gpu.
"""

import argparse
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import fairseq_plugins

LINES = 1024


def blocks(path: str) -> Iterator[dict[str, int]]:
    """Yield the offset and size of each block of a file, in bytes."""
    begin = 0
    with open(path, "rb") as file:
        while size := sum(map(len, islice(file, LINES))):
            yield {"begin": begin, "size": size}
            begin += size


class Translator:
    """Translate blocks of a file with an actor's model."""

    def __init__(self, folder: str, path: str, source_lang: str | None = None, target_lang: str | None = None) -> None:
        self.model = fairseq_plugins.load(folder, source_lang=source_lang, target_lang=target_lang)
        self.path = path

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        """Translate a batch of blocks, given by offset and size."""
        texts = []
        with open(self.path, "rb") as file:
            for begin, size in zip(batch["begin"], batch["size"], strict=True):
                file.seek(begin)
                lines = file.read(size).decode("utf-8-sig").removesuffix("\n").split("\n")
                texts.append("".join(f"{line}\n" for line in self.model.translate(lines)))
        return {"text": texts}


def main() -> None:
    import ray.data

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", help="model folder, as for fairseq_plugins.load")
    parser.add_argument("input", help="raw text, one sentence per line")
    parser.add_argument("output")
    parser.add_argument("--source-lang", help="of a multilingual model, as for spec-dec-translate")
    parser.add_argument("--target-lang")
    parser.add_argument("--actors", type=int, default=1)
    parser.add_argument("--gpu", action="store_true")
    args = parser.parse_args()
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    translated = ray.data.from_items(list(blocks(args.input))).map_batches(
        Translator,
        fn_constructor_args=(
            str(Path(args.folder).resolve()),
            str(Path(args.input).resolve()),
            args.source_lang,
            args.target_lang,
        ),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=args.actors),
        **({"num_gpus": 1} if args.gpu else {"num_cpus": 1}),
    )
    partial = Path(f"{args.output}.partial")
    with open(partial, "w", encoding="utf-8", newline="\n") as file:
        for row in translated.iter_rows():
            file.write(row["text"])
    partial.replace(args.output)


if __name__ == "__main__":
    main()
