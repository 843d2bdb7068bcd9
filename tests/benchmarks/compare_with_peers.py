"""Time our decoders beside transformers, CTranslate2, ONNX Runtime and OpenVINO: one thread, on a CPU.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.compare_with_peers [--half] [--batch-size N] [--beam N]
        [--runtime onnxruntime=PYTHON] [--runtime "openvino int8=PYTHON"]

The model is a random one of NLLB's architecture in the size of Transformer-base, saved by transformers, converted by
spec-dec-convert, and from there by CTranslate2. Its outputs repeat tokens, which prompt lookup copies; `iad` copies the
source. --half rounds the weights to float16, as in models that were saved in half precision.

optimum, which runs models of transformers on ONNX Runtime and OpenVINO, needs an older transformers than ours. So
--runtime names the Python of an environment of its own (`pip install "optimum-onnx[onnxruntime]"`, `pip install
"optimum-intel[openvino]"`).

Every row decodes the same sentences to the same length. Rows take turns, and the fastest pass of each batch counts.
The output says whose token ids are those of transformers, and how fast the decoder's weights are read, next to what a
core can read.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ctranslate2
import torch

import fairseq_plugins
from fairseq_plugins import conversion
from fairseq_plugins.benchmarks.ctranslate import convert
from tests.conversion.support import CLASSES

SIZE, LONGEST = 32000, 40
WORKER = Path(__file__).with_name("generate_worker.py")
Decode = Callable[[list[list[int]]], list[list[int]]]  # ids of sources to ids of outputs
EOS, PAD, SOURCE, TARGET = 2, 1, SIZE - 2, SIZE - 1
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
NAMES = [*SPECIAL, *(f"w{number}" for number in range(4, SOURCE)), "eng_Latn", "deu_Latn"]


@torch.no_grad()
def save_model(folder: Path, half: bool = False) -> Any:
    """Save a random model, rounded to float16 if `half`; return it."""
    kind = CLASSES["M2M100ForConditionalGeneration"]
    config = kind.config_class(
        vocab_size=SIZE,
        d_model=512,
        **{f"{side}_layers": 6 for side in ("encoder", "decoder")},
        **{f"{side}_attention_heads": 8 for side in ("encoder", "decoder")},
        **{f"{side}_ffn_dim": 2048 for side in ("encoder", "decoder")},
    )
    torch.manual_seed(0)
    model = kind(config)
    for name, weight in model.named_parameters():
        if ".layers." in name and weight.dim() == 2:
            weight.normal_(std=0.1)
        if half:
            weight.copy_(weight.half())
    model.save_pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(NAMES)}))
    return model.eval()


def bytes_of_step(model: Any) -> int:
    """Return the bytes of the weights that a step of the decoder reads: without the keys and values of the source."""
    layers = model.get_decoder().layers.named_parameters()
    once = ("encoder_attn.k_proj", "encoder_attn.v_proj")
    sizes = (int(weight.nbytes) for name, weight in layers if not any(part in name for part in once))
    return sum(sizes) + int(model.get_output_embeddings().weight.nbytes)


def read_rate() -> float:
    """Return how many bytes a second a core reads from memory, in a sum over 512 MiB."""
    numbers = torch.ones(128 * 2**20)
    best = float("inf")
    for _ in range(10):
        start = time.perf_counter()
        numbers.sum()
        best = min(best, time.perf_counter() - start)
    return numbers.nbytes / best


class Runtime:
    """Decodes with transformers' `generate` in a process of its own."""

    def __init__(self, python: str, folder: Path, name: str, beam: int, **options: Any) -> None:
        bad = {"bad_words_ids": [[PAD]], "forced_bos_token_id": TARGET}
        self.options = {"num_beams": beam, "max_new_tokens": LONGEST, **bad, **options}
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
        print(
            json.dumps([self.options, [[SOURCE, *source, EOS] for source in sources]]),
            file=self.process.stdin,
            flush=True,
        )
        outputs: list[list[int]] = json.loads(self._read())
        return outputs


def contenders(folder: Path, args: argparse.Namespace) -> dict[str, Decode]:
    """Return the rows by name; the first one is the reference."""
    conversion.convert(folder / "hf", folder / "out")
    languages = Namespace(data=folder / "out", source_lang="src", target_lang="tgt")
    converted = str(convert(str(folder / "out" / "verifier.pt"), languages, folder / "ct2"))
    numbers = {token: number for number, token in enumerate(NAMES)}

    def ctranslate(compute_type: str) -> Decode:
        translator = ctranslate2.Translator(converted, compute_type=compute_type, intra_threads=1)

        def decode(sources: list[list[int]]) -> list[list[int]]:
            tokens = [[NAMES[number] for number in (SOURCE, *source)] for source in sources]
            prefix = [[NAMES[TARGET]]] * len(sources)
            limits = {"beam_size": args.beam, "max_decoding_length": LONGEST}
            results = translator.translate_batch(tokens, target_prefix=prefix, **limits)
            return [[numbers[token] for token in result.hypotheses[0][1:]] for result in results]

        return decode

    def own(decoder: str, **options: Any) -> Decode:
        model = fairseq_plugins.load(
            folder / "out",
            decoder=decoder,
            device="cpu",
            threads=1,
            max_len_b=LONGEST,
            source_lang="eng_Latn",
            target_lang="deu_Latn",
            **options,
        )

        beam = {"beam": args.beam} if decoder == "fast-beam" else {}

        def decode(sources: list[list[int]]) -> list[list[int]]:
            texts = [[NAMES[number] for number in source] for source in sources]
            translations = model.translate_batch(texts, batch_size=len(texts), **beam)
            return [[numbers[token] for token in translation.tokens] for translation in translations]

        return decode

    rows: dict[str, Decode] = {"transformers": Runtime(sys.executable, folder / "hf", "transformers", args.beam)}
    if args.beam == 1 and args.batch_size == 1:
        lookup = {"prompt_lookup_num_tokens": 5}
        copying = Runtime(sys.executable, folder / "hf", "transformers", 1, **lookup)
        rows["transformers, prompt_lookup_num_tokens=5"] = copying
    for runtime in args.runtime:
        name, _, python = runtime.partition("=")
        rows[name] = Runtime(python, folder / "hf", name, args.beam)
    rows |= {"CTranslate2 fp32": ctranslate("float32"), "CTranslate2 int8": ctranslate("int8")}
    for decoder in ("greedy", "iad") if args.beam == 1 else ("fast-beam",):
        rows |= {decoder: own(decoder), f"{decoder}, int8": own(decoder, int8=True)}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", action="store_true", help="round weights to float16")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--beam", type=int, default=1)
    parser.add_argument("--sentences", type=int, default=16)
    parser.add_argument("--passes", type=int, default=4)
    parser.add_argument("--runtime", action="append", default=[], metavar="NAME=PYTHON", help="a row of optimum")
    args = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    sources = [torch.randint(4, SOURCE, (20,), generator=generator).tolist() for _ in range(args.sentences)]
    batches = [sources[first : first + args.batch_size] for first in range(0, args.sentences, args.batch_size)]
    with tempfile.TemporaryDirectory() as folder:
        original = save_model(Path(folder, "hf"), args.half)
        rows = contenders(Path(folder), args)
        outputs = {name: [ids for batch in batches for ids in decode(batch)] for name, decode in rows.items()}
        fastest = {name: [float("inf")] * len(batches) for name in rows}
        for _ in range(args.passes):
            for number, batch in enumerate(batches):
                for name, decode in rows.items():
                    start = time.perf_counter()
                    decode(batch)
                    fastest[name][number] = min(fastest[name][number], time.perf_counter() - start)
    seconds = {name: sum(times) for name, times in fastest.items()}
    reference, of_step = outputs["transformers"], bytes_of_step(original)
    if args.half:
        of_step //= 2  # our kernels read them as float16
    print("| row | sentences/s | over transformers | over CTranslate2 fp32 | same ids |")
    print("| --- | --: | --: | --: | --: |")
    for name, time_of_pass in seconds.items():
        same = sum(own == wanted for own, wanted in zip(outputs[name], reference, strict=True))
        ratios = (f"{seconds[other] / time_of_pass:.2f}" for other in ("transformers", "CTranslate2 fp32"))
        print(f"| {name} | {args.sentences / time_of_pass:.2f} | {' | '.join(ratios)} | {same} of {args.sentences} |")
    tokens = sum(map(len, reference))
    distinct = sum(len(set(output)) for output in reference)
    print(f"\n{tokens / args.sentences:.0f} tokens a sentence, {distinct / args.sentences:.0f} of them distinct")
    if args.beam == args.batch_size == 1:
        rate = of_step * tokens / seconds["greedy"] / 1e9
        print(
            f"weights of a step: {of_step / 1e6:.0f} MB; GB/s: {rate:.1f} with greedy, {read_rate() / 1e9:.1f} in a sum"
        )


if __name__ == "__main__":
    main()
