"""Time our decoders beside CTranslate2's on models of random fp32 weights: one thread, on a CPU.

    OMP_NUM_THREADS=1 python -m tests.compare_with_ctranslate [--shape base|nllb] [--batch-sizes 1,16,64] [--rows NAMES]

Float16 does not hold the weights, unlike those of `spec-dec-bench --replay`. Sources have 20 tokens, outputs 30. Rows
take turns, in passes; the rate of a row is the median of its passes. Ids are compared with CTranslate2's in fp32, for
a beam with its beam's. SPEC_DEC_ISA and CT2_FORCE_CPU_ISA limit both to older processors.
"""

import argparse
import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ctranslate2
import torch
from fairseq import models, options
from fairseq.data import Dictionary
from fairseq.tasks.translation import TranslationTask

import fairseq_plugins
from fairseq_plugins.benchmarks.ctranslate import convert

# layers, width, feed-forward width, heads, vocabulary
SHAPES = {"base": (6, 512, 2048, 8, 32000), "nllb": (12, 1024, 4096, 16, 64000), "tiny": (2, 128, 256, 4, 4000)}
SOURCE, TARGET, BEAM = 20, 30, 5

Decode = Callable[[list[list[str]]], list[list[str]]]


def write_model(folder: Path, shape: str) -> None:
    """Write a random model and its dictionaries to an empty folder."""
    layers, width, wide, heads, vocabulary = SHAPES[shape]
    words = Dictionary()
    for number in range(vocabulary - len(words)):
        words.add_symbol(f"w{number}")
    for side in ("src", "tgt"):
        words.save(str(folder / f"dict.{side}.txt"))
    sizes = [
        f"--{side}-{name}={value}"
        for side in ("encoder", "decoder")
        for name, value in (
            ("layers", layers),
            ("embed-dim", width),
            ("ffn-embed-dim", wide),
            ("attention-heads", heads),
        )
    ]
    common = [str(folder), "--source-lang", "src", "--target-lang", "tgt", "--share-all-embeddings"]
    arguments = [*common, "--task", "translation", "--arch", "transformer", *sizes]
    args = options.parse_args_and_arch(options.get_training_parser(), input_args=arguments)
    torch.manual_seed(0)
    task = TranslationTask.setup_task(args)
    model = models.ARCH_MODEL_REGISTRY["transformer"].build_model(args, task)
    with torch.no_grad():
        # With tied embeddings a random model repeats its input, which at first is EOS; other outputs get no end either.
        model.decoder.embed_tokens.weight[words.eos()] = 0
    history = {"criterion_name": "none", "optimizer_name": "none", "lr_scheduler_state": {}, "num_updates": 0}
    state = {"args": args, "model": model.state_dict(), "optimizer_history": [history], "extra_state": {"epoch": 1}}
    torch.save(state, folder / "verifier.pt")


def contenders(folder: Path, names: list[str], most: int) -> dict[str, Decode]:
    """Return functions that decode a batch of sources, by name of the row."""
    languages = Namespace(data=folder, source_lang="src", target_lang="tgt")
    converted = str(convert(str(folder / "verifier.pt"), languages, folder / "ct2"))

    def peer(kind: str, beam: int) -> Decode:
        translator = ctranslate2.Translator(converted, compute_type=kind, inter_threads=1, intra_threads=1)

        def decode(sources: list[list[str]]) -> list[list[str]]:
            results = translator.translate_batch(
                sources, beam_size=beam, min_decoding_length=TARGET, max_decoding_length=TARGET
            )
            return [result.hypotheses[0] for result in results]

        return decode

    def own(decoder: str, **more: Any) -> Decode:
        model = fairseq_plugins.load(
            verifier=folder / "verifier.pt",
            data=folder,
            decoder=decoder,
            device="cpu",
            threads=1,
            max_len_b=TARGET,
            min_len=TARGET,
            source_lang="src",
            target_lang="tgt",
            **more,
        )
        beam = BEAM if decoder == "fast-beam" else 1
        return lambda sources: [
            list(result.tokens) for result in model.translate_batch(sources, beam=beam, batch_size=most)
        ]

    rows: dict[str, Callable[[], Decode]] = {
        "CTranslate2 greedy fp32": lambda: peer("float32", 1),
        "greedy": lambda: own("greedy"),
        "CTranslate2 greedy int8": lambda: peer("int8", 1),
        "greedy int8": lambda: own("greedy", int8=True),
        f"CTranslate2 beam {BEAM} fp32": lambda: peer("float32", BEAM),
        "fast-beam": lambda: own("fast-beam"),
        f"CTranslate2 beam {BEAM} int8": lambda: peer("int8", BEAM),
        "fast-beam int8": lambda: own("fast-beam", int8=True),
        "iad": lambda: own("iad"),
        "jacobi": lambda: own("jacobi"),
        "gs-jacobi": lambda: own("gs-jacobi"),
    }
    return {name: make() for name, make in rows.items() if any(part == name or not part for part in names)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=SHAPES, default="base")
    parser.add_argument("--batch-sizes", default="1,16,64")
    parser.add_argument("--rows", default="", help="names with commas between them; default: all")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="keep the models there")
    args = parser.parse_args()
    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(0)
    sizes = [int(size) for size in args.batch_sizes.split(",")]
    numbers = torch.randint(0, SHAPES[args.shape][4] - 4, (max(sizes), SOURCE), generator=draw)
    sources = [[f"w{number}" for number in row] for row in numbers.tolist()]
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.folder or Path(temporary)) / args.shape
        if not folder.exists():
            folder.mkdir(parents=True)
            write_model(folder, args.shape)
        rows = contenders(folder, args.rows.split(","), max(sizes))
        rates: dict[str, list[float]] = {name: [] for name in rows}
        same = {}
        for size in sizes:
            outputs = {name: decode(sources[:size]) for name, decode in rows.items()}
            for name, found in outputs.items():
                reference = outputs.get(
                    f"CTranslate2 beam {BEAM} fp32" if "beam" in name else "CTranslate2 greedy fp32"
                )
                if reference:
                    same[name] = f"{sum(map(list.__eq__, found, reference))} of {size}"
            seconds: dict[str, list[float]] = {name: [] for name in rows}
            for _ in range(args.passes):
                for name, decode in rows.items():
                    start = time.perf_counter()
                    decode(sources[:size])
                    seconds[name].append(time.perf_counter() - start)
            for name in rows:
                rates[name].append(size / statistics.median(seconds[name]))
    print(f"| sentences/s | {' | '.join(f'batch {size}' for size in sizes)} | same ids at batch {sizes[-1]} |")
    print("| --- |" + " --: |" * (len(sizes) + 1))
    for name, measured in rates.items():
        print(f"| {name} | {' | '.join(f'{rate:.2f}' for rate in measured)} | {same.get(name, '')} |")


if __name__ == "__main__":
    main()
