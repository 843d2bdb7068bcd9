"""fairseq's generation options: what our decoders do with each; test_generation_options.py checks it."""

from dataclasses import dataclass, field
from typing import Any

SAME, REFUSED, PRINTING, NOTHING = "as fairseq", "refused", "as fairseq (printing)", "no effect, as in fairseq"


@dataclass(frozen=True)
class Entry:
    """What an option does.

    Attributes:
        value: to try.
        greedy: with decoders that keep one hypothesis.
        beams: with `fast-beam`.
        needs: other options to give with it.
        note: for the table.
    """

    value: Any
    greedy: str = SAME
    beams: str = SAME
    needs: dict[str, Any] = field(default_factory=dict)
    note: str = ""


_SAMPLES = "samples of the same distribution: [sampling](sampling.md)"
_SPEECH = "for speech-to-speech tasks"
_REFINEMENT = "for iterative refinement; its tasks are refused"
_REFINED = "for iterative refinement, with its own tasks"

OPTIONS: dict[str, Entry] = {
    "beam": Entry(3, "ignored: beam 1", SAME),
    "beam_mt": Entry(3, NOTHING, NOTHING, note=_SPEECH),
    "nbest": Entry(2, REFUSED, PRINTING, note="with `--sampling` all decoders print several samples"),
    "max_len_a": Entry(0.5),
    "max_len_b": Entry(4),
    "max_len_a_mt": Entry(0.5, NOTHING, NOTHING, note=_SPEECH),
    "max_len_b_mt": Entry(4, NOTHING, NOTHING, note=_SPEECH),
    "min_len": Entry(9),
    "match_source_len": Entry(True, REFUSED),
    "unnormalized": Entry(True, SAME),
    "no_early_stop": Entry(True, NOTHING, NOTHING),
    "no_beamable_mm": Entry(True, NOTHING, NOTHING),
    "lenpen": Entry(0.2),
    "lenpen_mt": Entry(0.2, NOTHING, NOTHING, note=_SPEECH),
    "unkpen": Entry(-9.0),
    "replace_unk": Entry("", PRINTING, PRINTING, note="fairseq 0.12 fails where an output has `<unk>`"),
    "sacrebleu": Entry(True, PRINTING, PRINTING),
    "score_reference": Entry(True, PRINTING, PRINTING, note="fairseq's scorer, with any decoder"),
    "prefix_size": Entry(2),
    "no_repeat_ngram_size": Entry(2, note="as with fairseq's CUDA extension, without which fairseq forbids nothing"),
    "sampling": Entry(True, _SAMPLES, _SAMPLES),
    "sampling_topk": Entry(1, SAME, SAME, {"sampling": True}, "of samples: [sampling](sampling.md)"),
    "sampling_topp": Entry(1e-6, SAME, SAME, {"sampling": True}, "of samples: [sampling](sampling.md)"),
    "constraints": Entry("ordered", REFUSED),
    "temperature": Entry(0.3),
    "diverse_beam_groups": Entry(3, REFUSED),
    "diverse_beam_strength": Entry(3.0, REFUSED, SAME, {"diverse_beam_groups": 3}),
    "diversity_rate": Entry(0.7, REFUSED),
    "print_alignment": Entry("hard"),
    "print_step": Entry(True, REFUSED, REFUSED, note=_REFINED),
    "lm_path": Entry("lm", REFUSED),
    "lm_weight": Entry(0.8, REFUSED, SAME, {"lm_path": "lm"}),
    "iter_decode_eos_penalty": Entry(1.0, NOTHING, NOTHING, note=_REFINEMENT),
    "iter_decode_max_iter": Entry(3, NOTHING, NOTHING, note=_REFINEMENT),
    "iter_decode_force_max_iter": Entry(True, NOTHING, NOTHING, note=_REFINEMENT),
    "iter_decode_with_beam": Entry(2, NOTHING, NOTHING, note=_REFINEMENT),
    "iter_decode_with_external_reranker": Entry(True, NOTHING, NOTHING, note=_REFINEMENT),
    "retain_iter_history": Entry(True, REFUSED, REFUSED, note=_REFINED),
    "retain_dropout": Entry(True, REFUSED, REFUSED),
    "retain_dropout_modules": Entry(["x"], REFUSED, REFUSED, {"retain_dropout": True}),
    "decoding_format": Entry("ensemble", NOTHING, NOTHING, note=_REFINEMENT),
    "no_seed_provided": Entry(True, NOTHING, NOTHING, note="set without `--seed`; the seed of samples is then 1"),
    "eos_token": Entry("x", NOTHING, NOTHING, note=_SPEECH),
}


def table() -> str:
    """Return the options as a Markdown table; those of other kinds of models share a row."""
    lines = ["| option | decoders with one hypothesis | `fast-beam` | |", "| --- | --- | --- | --- |"]
    shared: dict[tuple[str, str, str], list[str]] = {}
    for name, entry in OPTIONS.items():
        shared.setdefault((entry.greedy, entry.beams, entry.note), []).append(f"`--{name.replace('_', '-')}`")
    for (greedy, beams, note), names in shared.items():
        lines.append(f"| {', '.join(names)} | {greedy} | {beams} | {note} |")
    return "\n".join(lines)
