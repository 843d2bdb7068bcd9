"""Every option of fairseq's generation group: honoured with fairseq's output, or refused; none ignored in silence."""

from argparse import Namespace
from dataclasses import fields
from typing import Any

import pytest
import torch
from fairseq.dataclass.configs import GenerationConfig
from fairseq.iterative_refinement_generator import IterativeRefinementGenerator
from fairseq.sequence_scorer import SequenceScorer
from fairseq.token_generation_constraints import pack_constraints

from fairseq_plugins.tasks.own_generator import refuse_refinement_options
from tests.errors import refused
from tests.generation_options import NOTHING, OPTIONS, PRINTING, REFUSED, SAME, Entry
from tests.language_model import make_language_model
from tests.support import make_sample, make_task, make_transformer

_TASK = make_task(40)
_MODELS = [make_transformer(_TASK, 3)]
_SAMPLE = make_sample(_TASK, [3, 9, 5])


def decoded(decoder: str, name: str | None, entry: Entry | None, beam: int) -> tuple[list, list]:
    """Return tokens, and scores with alignments, of all hypotheses, with an option and those that it needs."""
    given: dict[str, Any] = {"beam": beam, "max_len_b": 12}
    if name is not None and entry is not None:
        given |= {**entry.needs, name: entry.value}
    lm_path, prefix_size = given.pop("lm_path", None), given.pop("prefix_size", 0)
    extra = None
    if lm_path is not None:
        model, _ = make_language_model(_TASK.target_dictionary, 9)
        extra = {"lm_model": model, "lm_weight": given.pop("lm_weight", 0.2)}
    _TASK.cfg.decoding_method = decoder
    generator = _TASK.build_generator(_MODELS, Namespace(**given), extra_gen_cls_kwargs=extra)
    more: dict[str, Any] = {}
    if prefix_size:
        more["prefix_tokens"] = torch.tensor([[5, 6], [7, 8], [9, 1]])[:, :prefix_size]
    if "constraints" in given:
        more["constraints"] = pack_constraints([[torch.tensor([7, 8])], [], [torch.tensor([5])]])
    output = generator.generate(_MODELS, _SAMPLE, **more)
    tokens = [[each["tokens"].tolist() for each in hypotheses] for hypotheses in output]
    scores = [(round(float(each["score"]), 3), each["alignment"]) for hypotheses in output for each in hypotheses]
    return tokens, [(score, list(alignment)) for score, alignment in scores]


def test_all_options_are_listed() -> None:
    assert list(OPTIONS) == [option.name for option in fields(GenerationConfig) if not option.name.startswith("_")]


@pytest.mark.parametrize("decoder, beam", [("greedy", 1), ("fast-beam", 3)])
@pytest.mark.parametrize("name", OPTIONS)
def test_option_does_what_the_table_says(name: str, decoder: str, beam: int) -> None:
    entry = OPTIONS[name]
    does = entry.greedy if decoder == "greedy" else entry.beams
    if name == "score_reference":
        _TASK.cfg.decoding_method = decoder
        assert isinstance(_TASK.build_generator(_MODELS, Namespace(score_reference=True)), SequenceScorer)
    elif does == REFUSED:
        shown = {"lm_weight": "lm-path", "diverse_beam_strength": "diverse-beam-groups"}.get(name, name)
        shown = "retain-dropout" if name == "retain_dropout_modules" else shown.replace("_", "-")
        with refused(f"--{shown}"):
            decoded(decoder, name, entry, beam)
    elif name == "beam":
        kept = 1 if decoder == "greedy" else 3
        assert decoded(decoder, name, entry, 3) == decoded("beam", None, None, kept)
    elif name == "sampling":
        samples, _ = decoded(decoder, name, entry, 3)
        assert all(len(of_sentence) == 3 for of_sentence in samples)
        assert samples != decoded("beam", None, None, 3)[0]
    elif name == "no_repeat_ngram_size":
        tokens, _ = decoded(decoder, name, entry, beam)
        pairs = [list(zip(ids, ids[1:], strict=False)) for of_sentence in tokens for ids in of_sentence]
        assert all(len(set(some)) == len(some) for some in pairs)
    elif name.startswith("sampling_"):
        best, _ = decoded("beam", None, None, 1)
        assert decoded(decoder, name, entry, 1)[0] == best
    else:
        assert does in (SAME, PRINTING, NOTHING)
        theirs = decoded("beam", name, entry, beam)
        assert decoded(decoder, name, entry, beam) == theirs
        assert (theirs == decoded("beam", None, None, beam)) == (does != SAME)


@pytest.mark.parametrize("more", [{}, {"score_reference": True}])
@pytest.mark.parametrize("decoder", ["beam", "greedy", "fast-beam"])
@pytest.mark.parametrize("name", ["print_step", "retain_iter_history"])
def test_options_of_refinement_are_refused_before_a_generator_decodes(
    name: str, decoder: str, more: dict[str, bool]
) -> None:
    """fairseq-generate would fail after the first batch; models that refine their outputs have what it prints."""
    _TASK.cfg.decoding_method = decoder
    args = Namespace(**{name: True}, **more)
    with refused(f"--{name.replace('_', '-')}"):
        _TASK.build_generator(_MODELS, args)
    refuse_refinement_options(IterativeRefinementGenerator(_TASK.target_dictionary), args)
