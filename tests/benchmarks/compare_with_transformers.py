"""Time our decoders beside transformers' greedy `generate` and CTranslate2: batch size 1, one thread, on a CPU.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.compare_with_transformers [--half]

The model is a random one of NLLB's architecture in the size of Transformer-base, saved by transformers, converted by
spec-dec-convert, and from there by CTranslate2. Its outputs repeat tokens, which prompt lookup copies; `iad` copies the
source. --half rounds the weights to float16, as in models that were saved in half precision.

Every row decodes the same sentences to the same length. Rows take turns, and the fastest pass of each sentence counts.
The output says whose token ids are those of transformers, and how fast the decoder's weights are read, next to what a
core can read.
"""

import argparse
import json
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

SIZE, SENTENCES, LONGEST = 32000, 10, 40
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


def contenders(folder: Path, original: Any) -> dict[str, Callable[[list[int]], list[int]]]:
    """Return functions that decode the ids of a source to ids, by name; the first one is the reference."""
    conversion.convert(folder / "hf", folder / "out")
    languages = Namespace(data=folder / "out", source_lang="src", target_lang="tgt")
    converted = str(convert(str(folder / "out" / "verifier.pt"), languages, folder / "ct2"))
    numbers = {token: number for number, token in enumerate(NAMES)}

    def generate(source: list[int], **options: Any) -> list[int]:
        outputs = original.generate(
            torch.tensor([[SOURCE, *source, EOS]]),
            num_beams=1,
            do_sample=False,
            max_new_tokens=LONGEST,
            forced_bos_token_id=TARGET,
            bad_words_ids=[[PAD]],
            **options,
        )
        ids: list[int] = outputs[0, 2:].tolist()
        return ids

    def ctranslate(compute_type: str) -> Callable[[list[int]], list[int]]:
        translator = ctranslate2.Translator(converted, compute_type=compute_type, intra_threads=1)

        def decode(source: list[int]) -> list[int]:
            tokens = [NAMES[number] for number in (SOURCE, *source)]
            (result,) = translator.translate_batch(
                [tokens], target_prefix=[[NAMES[TARGET]]], beam_size=1, max_decoding_length=LONGEST
            )
            return [numbers[token] for token in result.hypotheses[0][1:]]

        return decode

    def own(decoder: str, **options: Any) -> Callable[[list[int]], list[int]]:
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

        def decode(source: list[int]) -> list[int]:
            (translation,) = model.translate_batch([[NAMES[number] for number in source]])
            return [numbers[token] for token in translation.tokens]

        return decode

    return {
        "transformers": generate,
        "transformers, prompt_lookup_num_tokens=5": lambda source: generate(source, prompt_lookup_num_tokens=5),
        "CTranslate2 fp32": ctranslate("float32"),
        "CTranslate2 int8": ctranslate("int8"),
        "greedy": own("greedy"),
        "greedy, no_packed_weights": own("greedy", no_packed_weights=True),
        "greedy, int8": own("greedy", int8=True),
        "iad": own("iad"),
        "iad, int8": own("iad", int8=True),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--half", action="store_true", help="round weights to float16")
    parser.add_argument("--passes", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    sources = [torch.randint(4, SOURCE, (20,), generator=generator).tolist() for _ in range(SENTENCES)]
    with tempfile.TemporaryDirectory() as folder:
        original = save_model(Path(folder, "hf"), args.half)
        rows = contenders(Path(folder), original)
        outputs = {name: [decode(source) for source in sources] for name, decode in rows.items()}
        fastest = {name: [float("inf")] * SENTENCES for name in rows}
        for _ in range(args.passes):
            for number, source in enumerate(sources):
                for name, decode in rows.items():
                    start = time.perf_counter()
                    decode(source)
                    fastest[name][number] = min(fastest[name][number], time.perf_counter() - start)
    seconds = {name: sum(times) for name, times in fastest.items()}
    reference, of_step = outputs["transformers"], bytes_of_step(original)
    if args.half:
        of_step //= 2  # greedy and iad read them as float16
    print("| row | sentences/s | over transformers | over CTranslate2 fp32 | same ids |")
    print("| --- | --: | --: | --: | --: |")
    for name, time_of_pass in seconds.items():
        same = sum(own == wanted for own, wanted in zip(outputs[name], reference, strict=True))
        ratios = (f"{seconds[other] / time_of_pass:.2f}" for other in ("transformers", "CTranslate2 fp32"))
        print(f"| {name} | {SENTENCES / time_of_pass:.2f} | {' | '.join(ratios)} | {same} of {SENTENCES} |")
    tokens = sum(map(len, reference))
    distinct = sum(len(set(output)) for output in reference)
    print(f"\n{tokens / SENTENCES:.0f} tokens a sentence, {distinct / SENTENCES:.0f} of them distinct")
    rates = [of_step * tokens / seconds[name] / 1e9 for name in ("greedy", "greedy, no_packed_weights")]
    print(f"weights of a step: {of_step / 1e6:.0f} MB")
    print(f"GB/s: {rates[0]:.1f} with greedy, {rates[1]:.1f} without packed weights, {read_rate() / 1e9:.1f} in a sum")


if __name__ == "__main__":
    main()
