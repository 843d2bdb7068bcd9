"""Time our decoders beside transformers, CTranslate2, ONNX Runtime and OpenVINO: one thread, on a CPU.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.compare_with_peers [--model nllb] [--batch-size N] [--beam N]
        [--folder FOLDER] [--runtime onnxruntime=PYTHON] [--runtime "openvino int8=PYTHON"]

The model is a random one of NLLB's architecture in the size of Transformer-base (--model nllb: of NLLB-600M, with
64,000 words), saved by transformers, converted by spec-dec-convert, and from there by CTranslate2. --folder keeps the
converted models for later runs with the same --model.

optimum, which runs models of transformers on ONNX Runtime and OpenVINO, needs an older transformers than ours. So
--runtime names the Python of an environment of its own (`pip install "optimum-onnx[onnxruntime]"`, `pip install
"optimum-intel[openvino]"`).

Every row decodes the same sentences to the same length. Rows take turns, and the median of the passes counts. The
output says whose token ids are those of the first row.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ctranslate2
import torch

import fairseq_plugins
from fairseq_plugins.benchmarks.ctranslate import convert
from fairseq_plugins.conversion.convert import convert as convert_to_fairseq
from tests.conversion.support import CLASSES
from tests.support import both_sides

LONGEST = 40
WORKER = Path(__file__).with_name("generate_worker.py")
Decode = Callable[[list[list[int]]], list[list[int]]]  # ids of sources to ids of outputs
EOS, PAD = 2, 1
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


@dataclass(frozen=True)
class Shape:
    """The size of a model. The last two of its words are the languages."""

    words: int
    layers: int
    width: int
    heads: int

    @property
    def languages(self) -> tuple[int, int]:
        """Ids of the source and target language."""
        return self.words - 2, self.words - 1

    @property
    def names(self) -> list[str]:
        """All words by id."""
        return [*SPECIAL, *(f"w{number}" for number in range(4, self.words - 2)), "eng_Latn", "deu_Latn"]


SHAPES = {"base": Shape(32000, 6, 512, 8), "nllb": Shape(64000, 12, 1024, 16)}


@torch.no_grad()
def save_model(folder: Path, shape: Shape) -> None:
    """Save a random model."""
    kind = CLASSES["M2M100ForConditionalGeneration"]
    config = kind.config_class(
        vocab_size=shape.words,
        d_model=shape.width,
        **both_sides(layers=shape.layers, attention_heads=shape.heads, ffn_dim=4 * shape.width),
    )
    torch.manual_seed(0)
    model = kind(config)
    for name, weight in model.named_parameters():
        if ".layers." in name and weight.dim() == 2:
            weight.normal_(std=0.1)
    model.save_pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(shape.names)}))


class Runtime:
    """Decodes with transformers' `generate` in a process of its own."""

    def __init__(self, python: str, folder: Path, name: str, shape: Shape, beam: int) -> None:
        self.source, target = shape.languages
        bad = {"bad_words_ids": [[PAD]], "forced_bos_token_id": target}
        self.options = {"num_beams": beam, "max_new_tokens": LONGEST, **bad}
        command = [python, str(WORKER), str(folder), name]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._read("ready\n")

    def _read(self, wanted: str | None = None) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            # Exporters also print.
            if line == wanted or (wanted is None and line.startswith("[[")):
                return line
        raise RuntimeError(f"{self.process.args!r} ended with status {self.process.wait()}")

    def __call__(self, sources: list[list[int]]) -> list[list[int]]:
        assert self.process.stdin is not None
        request = [self.options, [[self.source, *source, EOS] for source in sources]]
        print(json.dumps(request), file=self.process.stdin, flush=True)
        outputs: list[list[int]] = json.loads(self._read())
        return outputs


def ctranslate(folder: Path, shape: Shape, beam: int, compute_type: str) -> Decode:
    """Convert the model for CTranslate2 and load it."""
    languages = Namespace(data=folder / "out", source_lang="src", target_lang="tgt")
    converted = str(convert(str(folder / "out" / "verifier.pt"), languages, folder / "ct2"))
    translator = ctranslate2.Translator(converted, compute_type=compute_type, intra_threads=1)
    names = shape.names
    numbers = {token: number for number, token in enumerate(names)}
    source_language, target_language = shape.languages

    def decode(sources: list[list[int]]) -> list[list[int]]:
        tokens = [[names[number] for number in (source_language, *source)] for source in sources]
        prefix = [[names[target_language]]] * len(sources)
        limits = {"beam_size": beam, "max_decoding_length": LONGEST}
        results = translator.translate_batch(tokens, target_prefix=prefix, **limits)
        return [[numbers[token] for token in result.hypotheses[0][1:]] for result in results]

    return decode


def own(folder: Path, shape: Shape, beam: int, decoder: str, **options: Any) -> Decode:
    """Load the model into one of our decoders."""
    options |= {"device": "cpu", "threads": 1, "source_lang": "eng_Latn", "target_lang": "deu_Latn"}
    model = fairseq_plugins.load(folder / "out", decoder=decoder, max_len_b=LONGEST, **options)
    names = shape.names
    numbers = {token: number for number, token in enumerate(names)}
    search: dict[str, Any] = {"beam": beam} if decoder == "fast-beam" else {}

    def decode(sources: list[list[int]]) -> list[list[int]]:
        texts = [[names[number] for number in source] for source in sources]
        translations = model.translate_batch(texts, batch_size=len(texts), return_scores=False, **search)
        return [[numbers[token] for token in translation.tokens] for translation in translations]

    return decode


def contenders(folder: Path, shape: Shape, args: argparse.Namespace) -> dict[str, Callable[[], Decode]]:
    """Return what loads each row, by name."""
    optimum = partial(Runtime, folder=folder, shape=shape, beam=args.beam)
    rows: dict[str, Callable[[], Decode]] = {"transformers": partial(optimum, sys.executable, name="transformers")}
    for runtime in args.runtime:
        name, _, python = runtime.partition("=")
        rows[name] = partial(optimum, python, name=name)
    for name, compute_type in (("CTranslate2", "float32"), ("CTranslate2 int8", "int8")):
        rows[name] = partial(ctranslate, folder, shape, args.beam, compute_type)
    decoder = "greedy" if args.beam == 1 else "fast-beam"
    rows[decoder] = partial(own, folder, shape, args.beam, decoder)
    rows[f"{decoder} int8"] = partial(own, folder, shape, args.beam, decoder, int8=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="base")
    parser.add_argument("--folder", type=Path, help="where converted models are kept")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--beam", type=int, default=1)
    parser.add_argument("--sentences", type=int, default=16)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--runtime", action="append", default=[], metavar="NAME=PYTHON", help="a row of optimum")
    args = parser.parse_args()
    torch.set_num_threads(1)
    shape = SHAPES[args.model]
    generator = torch.Generator().manual_seed(0)
    sources = [torch.randint(4, shape.words - 2, (20,), generator=generator).tolist() for _ in range(args.sentences)]
    batches = [sources[first : first + args.batch_size] for first in range(0, args.sentences, args.batch_size)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        if not (folder / "out").exists():
            save_model(folder / "hf", shape)
            convert_to_fairseq(folder / "hf", folder / "out")
        rows = {name: load() for name, load in contenders(folder, shape, args).items()}
        outputs = {name: [ids for batch in batches for ids in decode(batch)] for name, decode in rows.items()}
        passes: dict[str, list[float]] = {name: [] for name in rows}
        for _ in range(args.passes):
            for name, decode in rows.items():
                start = time.perf_counter()
                for batch in batches:
                    decode(batch)
                passes[name].append(time.perf_counter() - start)
    seconds = {name: statistics.median(times) for name, times in passes.items()}
    first, reference = next(iter(outputs.items()))
    print(f"| row | sentences/s | over {first} | same ids |\n| --- | --: | --: | --: |")
    for name, time_of_pass in seconds.items():
        same = sum(ids == wanted for ids, wanted in zip(outputs[name], reference, strict=True))
        speed, ratio = args.sentences / time_of_pass, seconds[first] / time_of_pass
        print(f"| {name} | {speed:.3g} | {ratio:.2f} | {same} of {args.sentences} |")


if __name__ == "__main__":
    main()
