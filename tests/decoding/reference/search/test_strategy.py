"""fairseq's other beam searches on our engine: the hypotheses of fairseq's own generator."""

from argparse import Namespace
from typing import Any

import pytest
import torch
from fairseq.token_generation_constraints import pack_constraints

from fairseq_plugins.decoding.generator import DraftVerifyGenerator
from tests.errors import error_about
from tests.language_model import make_language_model
from tests.support import all_ids, make_sample, make_task, make_transformer

VOCABULARY = 40
SEARCHES: dict[str, dict[str, Any]] = {
    "ordered": {"constraints": "ordered"},
    "unordered": {"constraints": "unordered"},
    "groups": {"diverse_beam_groups": 2},
    "siblings": {"diversity_rate": 0.7},
    # A low temperature lets hypotheses outgrow their sources.
    "lengths": {"match_source_len": True, "temperature": 0.2},
    "lm": {"lm_path": "lm"},
    "groups and lm": {"diverse_beam_groups": 4, "diverse_beam_strength": 1.5, "lm_path": "lm"},
}


def decoded(decoder: str, options: dict[str, Any], sample: dict[str, Any], models: list, **more: Any) -> list:
    task = make_task(VOCABULARY, decoding_method=decoder)
    given = {name: value for name, value in options.items() if name != "lm_path"}
    extra = None
    if "lm_path" in options:
        extra = {"lm_model": make_language_model(task.target_dictionary, 9)[0], "lm_weight": 0.4}
    args = Namespace(beam=4, max_len_b=14, min_len=2, lenpen=0.8, **given)
    generator = task.build_generator(models, args, extra_gen_cls_kwargs=extra)
    assert isinstance(generator, DraftVerifyGenerator) == (decoder == "fast-beam")
    constraints = None
    if "constraints" in options:
        words = [[[7, 8], [20]], [], [[5]], [[30, 31, 32], [9], [9]], [[11]]]
        constraints = pack_constraints([[torch.tensor(phrase) for phrase in phrases] for phrases in words])
    for _ in range(2 if decoder == "fast-beam" else 1):  # nothing of a batch is left for the next
        output = generator.generate(models, sample, constraints=constraints, **more)
    return output


@pytest.mark.parametrize("search", SEARCHES)
def test_hypotheses_are_fairseqs(search: str) -> None:
    task = make_task(VOCABULARY)
    sample = make_sample(task, [3, 9, 5, 1, 7])
    models = [make_transformer(task, seed) for seed in ((3, 4) if search == "siblings" else (3,))]
    theirs = decoded("beam", SEARCHES[search], sample, models)
    ours = decoded("fast-beam", SEARCHES[search], sample, models)
    for one, other in zip(ours, theirs, strict=True):
        for mine, their in zip(one, other, strict=True):
            torch.testing.assert_close(mine["score"], their["score"], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(mine["positional_scores"], their["positional_scores"], rtol=1e-4, atol=1e-4)
    assert all_ids(theirs) == all_ids(ours) != all_ids(decoded("fast-beam", {}, sample, models))


def test_a_prefix_goes_before_other_searches() -> None:
    task = make_task(VOCABULARY)
    sample, models = make_sample(task, [3, 9, 5, 1, 7]), [make_transformer(task, 3)]
    prefix = torch.tensor([[5, 6], [7, 1], [1, 1], [9, 9], [4, 5]])
    theirs = decoded("beam", SEARCHES["siblings"], sample, models, prefix_tokens=prefix)
    ours = decoded("fast-beam", SEARCHES["siblings"], sample, models, prefix_tokens=prefix)
    assert all_ids(ours) == all_ids(theirs)


def test_mistakes_are_named() -> None:
    task = make_task(VOCABULARY, decoding_method="fast-beam")
    models, sample = [make_transformer(task, 3)], make_sample(task, [3])
    with error_about("--diverse-beam-groups", "must divide --beam 4"):
        task.build_generator(models, Namespace(beam=4, diverse_beam_groups=3))
    own = make_task(VOCABULARY, decoding_method="beam")
    with error_about("--diverse-beam-groups", "must divide --beam 4; give --beam 6, or groups that divide it"):
        own.build_generator(models, Namespace(beam=4, diverse_beam_groups=3))
    assert own.build_generator(models, Namespace(beam=4, diverse_beam_groups=3, score_reference=True))
    constraints = pack_constraints([[torch.tensor([7])]])
    plain = task.build_generator(models, Namespace(beam=4))
    with error_about("--constraints", "are not for this search; use --decoder fast-beam without --match-source-len"):
        plain.generate(models, sample, constraints=constraints)
    task.cfg.active_sentences = 2
    held = task.build_generator(models, Namespace(beam=4, diversity_rate=0.5))
    with error_about("--active-sentences", "is not supported with --diversity-rate"):
        held.generate(models, sample)
