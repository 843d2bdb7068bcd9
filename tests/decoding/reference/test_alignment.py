"""Alignments: those of fairseq for the same hypotheses."""

import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from fairseq.models.transformer import TransformerDecoderBase
from fairseq.models.transformer_align import TransformerAlignModel
from fairseq.utils import extract_hard_alignment

from fairseq_plugins import wrap
from fairseq_plugins.decoding.reference.alignment import align
from tests.api.released import CLDR, loaded
from tests.errors import error_about
from tests.families import FAMILIES
from tests.support import make_sample, make_task, make_transformer


@pytest.mark.parametrize("kind", ["hard", "soft"])
@pytest.mark.parametrize("decoder, beam", [("greedy", 1), ("jacobi", 1), ("fast-beam", 3)])
@pytest.mark.parametrize("reads_all", [False, True])
def test_alignments_are_fairseqs(kind: str, decoder: str, beam: int, reads_all: bool) -> None:
    task = make_task(40)
    models = [make_transformer(task, seed) for seed in ((3, 4) if decoder == "jacobi" else (3,))]
    for model in models if reads_all else ():
        model.__class__ = TransformerAlignModel
        model.full_context_alignment, model.alignment_layer, model.alignment_heads = True, 0, 2
    sample, found = make_sample(task, [3, 9, 5, 1]), {}
    for name in ("beam", decoder):
        task.cfg.decoding_method = name
        own = task.build_generator(models, Namespace(beam=beam, print_alignment=kind, max_len_b=12))
        found[name] = task.inference_step(own, models, sample)
    for ours, theirs in zip(found[decoder], found["beam"], strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one["tokens"], other["tokens"])
            torch.testing.assert_close(one["attention"], other["attention"], rtol=1e-4, atol=1e-5)
            if kind == "hard":
                assert one["alignment"] == other["alignment"]
            else:
                rows = [torch.tensor([[float(p) for p in row] for row in each["alignment"]]) for each in (one, other)]
                torch.testing.assert_close(*rows, rtol=0, atol=2e-6)


@pytest.mark.filterwarnings("error:Support for mismatched")
def test_torch_warns_of_no_second_mask() -> None:
    """Of outputs with unlike lengths: the log of a server had it."""
    model = loaded("greedy")
    sources = [model.tokenize(text) for text in ("Monday", "the day of the week, and of the year 2020")]
    short, long = model.translate_batch(sources, alignments=True)
    assert len(short.tokens) < len(long.tokens) and short.alignment and long.alignment


def test_fairseqs_tools_align_what_they_print(monkeypatch: pytest.MonkeyPatch) -> None:
    """Aligning is a pass over whole outputs: of all five of a beam it took most of the time."""
    monkeypatch.setattr(sys, "argv", ["fairseq-generate"])
    task = make_task(40, decoding_method="fast-beam")
    models = [make_transformer(task, 3)]
    args = Namespace(beam=3, nbest=2, print_alignment="hard", min_len=4, max_len_b=12)
    found = task.build_generator(models, args).generate(models, make_sample(task, [3, 9]))
    assert [[len(one["alignment"]) > 0 for one in of_sentence] for of_sentence in found] == [[True, True, False]] * 2


@pytest.mark.filterwarnings("ignore")  # of hydra, caused by fairseq
def test_bart_aligns_each_sentence_to_its_own_source(tmp_path: Path) -> None:
    """fairseq's BART keeps the beam of the search, and would read the sources of four sentences as of two."""
    family = FAMILIES["bart"]
    task = family.set_up(tmp_path)
    model, _ = family.model(task)
    sample, found, generators = next(family.batches(task, 4)), {}, []
    for decoder in ("beam", "fast-beam"):
        wrap(task, decoder=decoder)
        own = task.build_generator([model], Namespace(beam=2, print_alignment="hard", max_len_b=12))
        own.most_aligned = 1  # as fairseq's tools print
        generators.append(own)
        found[decoder] = [best["attention"] for best, *_ in own.generate([model], sample)]
    for ours, theirs in zip(found["fast-beam"], found["beam"], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    again = [best["attention"] for best, *_ in generators[0].generate([model], sample)]
    torch.testing.assert_close(again, found["beam"], rtol=0, atol=0)  # its beam is that of before


def test_api_gives_the_source_subword_of_each_target_subword() -> None:
    model = loaded()
    text = "Two young men are playing football in a park ."
    translation = model.translate(text, return_scores=True, alignments=True)
    assert translation.alignment is not None and len(translation.alignment) == len(translation.tokens)
    assert all(0 <= place < len(model.tokenize(text)) for place in translation.alignment)
    assert (
        loaded("beam").translate(text, beam=1, return_scores=True, alignments=True).alignment == translation.alignment
    )
    assert model.translate(text, return_scores=True).alignment is None


def test_api_aligns_alternatives() -> None:
    options = {"beam": 3, "num_hypotheses": 2, "return_scores": True, "alignments": True}
    found = loaded("fast-beam", CLDR).translate(["in 3 months", "week"], **options)
    assert all(one.alignment is not None for each in found for one in (each, *each.alternatives))


def test_models_without_attention_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task(40)
    model = make_transformer(task, 3)
    without = lambda *_, **__: (torch.zeros(1), {"attn": [None]})  # noqa: E731
    monkeypatch.setattr(TransformerDecoderBase, "extract_features", without)
    output = [[{"tokens": torch.tensor([5, 2])}]]
    with error_about("--print-alignment", "the model has no attention"):
        align([model], make_sample(task, [3]), output, extract_hard_alignment, (1, 2), 2)
