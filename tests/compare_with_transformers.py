"""Time `greedy` and `iad` beside transformers' greedy `generate` and CTranslate2: batch size 1, one thread, on a CPU.

    OMP_NUM_THREADS=1 python -m tests.compare_with_transformers

The model is a random one of NLLB's architecture in the size of Transformer-base, saved by transformers, converted by
spec-dec-convert, and from there by CTranslate2. Every row decodes the same sentences to the same length; rows in turn,
and the fastest pass of each counts. The table says whose token ids are those of transformers.
"""

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
from fairseq_plugins.benchmarks.ctranslate import convert
from tests.conversion.support import CLASSES

SIZE, SENTENCES, LONGEST, PASSES = 32000, 10, 40, 2
EOS, PAD, SOURCE, TARGET = 2, 1, SIZE - 2, SIZE - 1
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
NAMES = [*SPECIAL, *(f"w{number}" for number in range(4, SOURCE)), "eng_Latn", "deu_Latn"]


@torch.no_grad()
def save_model(folder: Path) -> Any:
    """Save a random model whose outputs don't repeat their last token; return it."""
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
    model.save_pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(NAMES)}))
    return model.eval()


def contenders(folder: Path) -> dict[str, Callable[[list[int]], list[int]]]:
    """Return functions that decode the ids of a source to ids, by name; the first one is the reference."""
    original = save_model(folder / "hf")
    fairseq_plugins.conversion.convert(folder / "hf", folder / "out")
    languages = Namespace(data=folder / "out", source_lang="src", target_lang="tgt")
    translator = ctranslate2.Translator(
        str(convert(str(folder / "out" / "verifier.pt"), languages, folder / "ct2")), intra_threads=1
    )
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

    def ctranslate(source: list[int]) -> list[int]:
        tokens = [NAMES[number] for number in (SOURCE, *source)]
        (result,) = translator.translate_batch(
            [tokens], target_prefix=[[NAMES[TARGET]]], beam_size=1, max_decoding_length=LONGEST
        )
        return [numbers[token] for token in result.hypotheses[0][1:]]

    def own(decoder: str) -> Callable[[list[int]], list[int]]:
        model = fairseq_plugins.load(
            folder / "out",
            decoder=decoder,
            device="cpu",
            threads=1,
            max_len_b=LONGEST,
            source_lang="eng_Latn",
            target_lang="deu_Latn",
        )

        def decode(source: list[int]) -> list[int]:
            (translation,) = model.translate_batch([[NAMES[number] for number in source]])
            return [numbers[token] for token in translation.tokens]

        return decode

    return {
        "transformers": generate,
        "transformers, prompt_lookup_num_tokens=5": lambda source: generate(source, prompt_lookup_num_tokens=5),
        "CTranslate2 fp32": ctranslate,
        "greedy": own("greedy"),
        "iad": own("iad"),
    }


def main() -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    sources = [torch.randint(4, SOURCE, (20,), generator=generator).tolist() for _ in range(SENTENCES)]
    with tempfile.TemporaryDirectory() as folder:
        rows = contenders(Path(folder))
        outputs = {name: [decode(source) for source in sources] for name, decode in rows.items()}
        seconds = dict.fromkeys(rows, float("inf"))
        for _ in range(PASSES):
            for name, decode in rows.items():
                start = time.perf_counter()
                for source in sources:
                    decode(source)
                seconds[name] = min(seconds[name], time.perf_counter() - start)
    reference = outputs["transformers"]
    print("| decoder | sentences/s | over transformers | same ids |\n| --- | --: | --: | --: |")
    for name, time_of_pass in seconds.items():
        same = sum(own == wanted for own, wanted in zip(outputs[name], reference, strict=True))
        ratio = seconds["transformers"] / time_of_pass
        print(f"| {name} | {SENTENCES / time_of_pass:.2f} | {ratio:.2f} | {same} of {SENTENCES} |")


if __name__ == "__main__":
    main()
