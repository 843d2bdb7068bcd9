"""Options of `load`, `wrap` and calls: names, types, and errors for names that do not exist."""

from argparse import ArgumentParser
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal, TypedDict

import torch
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from fairseq_plugins.decoding.search_numbers import Count, Factor, Length, Penalty, Power, Threads, check_values
from fairseq_plugins.errors import ConfigurationError, Spelling, as_command, did_you_mean, flag, in_python


class TokenOptions(TypedDict, total=False):
    """Options that forbid tokens of the target, named as in Hugging Face; by default they are those given to `load`.

    Attributes:
        suppress_tokens: tokens that no output has.
        begin_suppress_tokens: tokens that no output begins with.
    """

    suppress_tokens: list[str] | str | None
    begin_suppress_tokens: list[str] | str | None


class SearchOptions(TokenOptions, total=False):
    """Options of a call, named as in fairseq; by default they are those given to `load`.

    Attributes:
        max_len_a, max_len_b: maximum output length, max_len_a times the batch's longest source plus max_len_b tokens.
        min_len: minimum output length in tokens.
        lenpen: length penalty; above 1 favours long hypotheses.
        unnormalized: rank hypotheses by the sum of their tokens' scores.
        unkpen: penalty of the unknown word, subtracted from its score.
    """

    max_len_a: Factor
    max_len_b: Length
    min_len: Length
    lenpen: Power
    unnormalized: bool
    unkpen: Penalty


class SamplingOptions(TypedDict, total=False):
    """Options of sampling, named as in fairseq; by default they are those given to `load`.

    Attributes:
        sampling: draw each token from the model's distribution; `num_hypotheses` samples of each sentence.
        sampling_topk: draw from this many tokens only, the most likely ones.
        sampling_topp: draw from the smallest set of tokens whose probability reaches this.
        temperature: divides the model's scores, also without sampling.
        seed: the same one gives the same samples, whatever the decoder, the drafts and the batches.
    """

    sampling: bool
    sampling_topk: int
    sampling_topp: float
    temperature: float
    seed: int


class CallOptions(SearchOptions, SamplingOptions, total=False):
    """Options of a call that translates.

    Attributes:
        beam: hypotheses per sentence, for decoders that keep several; default 5, as in fairseq-generate.
        num_hypotheses: hypotheses to return, all but the best as `Translation.alternatives`; default 1.
        batch_size: sentences of similar length decoded together; default 32. Does not change the output of lossless
            decoders.
        alignments: fill `Translation.alignment`, by another pass of the model; default False.
        constraint_order: whether outputs contain the phrases of `constraints` in their order ("ordered", the default)
            or in any ("unordered").
    """

    beam: Count | None
    num_hypotheses: Count
    batch_size: Count
    alignments: bool
    constraint_order: Literal["ordered", "unordered"]


class DecoderOptions(TypedDict, total=False):
    """Options of the decoding methods, for `load` and `wrap`; docs/options.md has the meaning of each."""

    accept_distance: float | None
    accept_score: Literal["verifier", "drafter"]
    active_sentences: int
    block_size: int | None
    draft_vocabulary: float | None
    drafts: str | None
    fixed_width: bool
    fp32_drafts: bool
    iad_fallback: Literal["none", "gad"]
    int8: bool
    jacobi_init: Literal["pad", "source", "unk"]
    jacobi_length: int
    min_block: int
    no_compiled_steps: bool
    no_cuda_graphs: bool
    no_packed_weights: bool
    preset: Literal["none", "high-quality", "high-efficiency"]
    tau: float
    top_beta: int


class WrapOptions(DecoderOptions, TokenOptions, total=False):
    """Options of `wrap`; `seed` is that of sampling."""

    seed: int
    stats_file: str | None
    trace_file: str | None


class LoadOptions(DecoderOptions, SearchOptions, SamplingOptions, total=False):
    """Options of `load`: those of the method, of every call, and of fairseq's generation (docs/options.md)."""

    forced_first_token: str | None
    source_first_token: str | None
    decoding_format: str | None
    diverse_beam_groups: int
    diverse_beam_strength: float
    diversity_rate: float
    lm_path: str | None
    lm_weight: float
    match_source_len: bool
    no_early_stop: bool
    no_repeat_ngram_size: int


def names(options: type) -> set[str]:
    """Return the names of a TypedDict's options."""
    return set(options.__annotations__)


class LoadArguments(TypedDict):
    """Arguments of `load` beside its options; paths are strings."""

    folder: str | None
    verifier: str | None
    drafter: str | None
    data: str | None
    decoder: str | None
    task: str
    task_options: dict[str, Any] | None
    source_lang: str | None
    target_lang: str | None
    subwords: str | None
    tokenizer: str | None
    device: str | None
    precision: str
    threads: Threads | None


class ServiceArguments(TypedDict):
    """Arguments of `Model.service` that are checked as those of `load` are."""

    threads: Threads | None


@dataclass(frozen=True)
class Place:
    """Where options are given: its name, for messages, and the names of its options and its other arguments."""

    name: str
    known: set[str]
    arguments: set[str]


LOAD = Place("load", names(LoadOptions), names(LoadArguments))
WRAP = Place("wrap", names(WrapOptions), {"task", "decoder", "drafter"})
CALL = Place("translate", names(CallOptions), {"text", "drafts", "constraints", "return_scores"})


def spelling_of(parser: ArgumentParser) -> Spelling:
    """Return how a command spells options that has its own for the arguments of `load` and `--set` for the others."""
    return as_command({action.dest for action in parser._actions}, LOAD.known | LOAD.arguments)


def check_names(given: Collection[str], place: Place, fitting: Collection[str] = (), others: str = "") -> None:
    """Raise ConfigurationError for an option that does not exist, or belongs elsewhere; it names the nearest one.

    If none is similar it lists the names `fitting`. `others` says where options go that are not known here.
    """
    for name in given:
        if name not in place.known:
            raise ConfigurationError(name, None, _advice(name, place, fitting or place.known, others))


def _advice(name: str, place: Place, fitting: Collection[str], others: str) -> str:
    own = {*place.known, *place.arguments}
    option = "--decoder" if name == "decoding_method" else flag(name)
    if in_python(option, None) != f"{name}=":
        return f"no such option; in Python it is {{{option}}}"
    for other in (LOAD, CALL):
        if name in {*other.known, *other.arguments} - own:
            remedy = "give it to load" if other is LOAD else f"give it to each call: model.translate(text, {name}=...)"
            return f"is no option of {place.name}; {remedy}"
    everywhere = own.union(*(other.known for other in (LOAD, CALL)), *(other.arguments for other in (LOAD, CALL)))
    nearest = did_you_mean(name, own) or did_you_mean(name, everywhere)
    fits = f"{others}there are {', '.join(sorted(fitting))} (all: docs/options.md)"
    return f"no such option; {nearest or fits}"


def check_arguments(given: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """Return arguments with the types of a TypedDict; a `Path` is a string, as is a `torch.device`.

    Raises ConfigurationError for an argument of another type or out of its range.
    """
    plain = {
        name: str(value) if isinstance(value, (PurePath, torch.device)) else value for name, value in given.items()
    }
    return check_values(plain, kind)


def set_option(cfg: DictConfig, name: str, value: Any) -> None:
    """Set an option in a configuration; raise ConfigurationError for a value of the wrong type."""
    try:
        cfg[name] = " ".join(value) if isinstance(value, (list, tuple)) else value
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0]
        raise ConfigurationError(flag(name), value, f"is not a value of this option ({reason})") from error
