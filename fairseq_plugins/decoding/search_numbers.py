"""Types and ranges of fairseq's numbers of a search. Numbers beyond them overflow, or no search can use them."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

from msgspec import Meta

from fairseq_plugins.errors import ConfigurationError, flag
from fairseq_plugins.shared.typed_values import WrongValue, checked

Count = Annotated[int, Meta(ge=1, lt=2**31)]
# Where the system has no more threads, OpenMP ends the process.
Threads = Annotated[int, Meta(ge=1, le=1024)]
Length = Annotated[int, Meta(ge=0, lt=2**31)]
# Not infinite and not NaN, which compares as false.
Factor = Annotated[float, Meta(ge=0, le=1e6)]
# 10,000 tokens to the power of 70 are a number of double precision.
Power = Annotated[float, Meta(ge=-70, le=70)]
# Also infinite, which forbids the unknown word, but not NaN.
Penalty = Annotated[float, Meta(ge=-1e308)]
# Scores in fp32 that are divided by less overflow.
Temperature = Annotated[float, Meta(ge=1e-30, le=1e6)]
# Weights of scores; below 0 some of them are off.
Weight = Annotated[float, Meta(ge=-1e6, le=1e6)]
# Of the probability; 0 and below: off.
Share = Annotated[float, Meta(ge=-1, le=1)]


class SearchNumbers(TypedDict, total=False):
    """Numbers that fairseq's commands take."""

    beam: Count
    nbest: Count
    max_len_a: Factor
    max_len_b: Length
    min_len: Length
    lenpen: Power
    unkpen: Penalty
    temperature: Temperature
    no_repeat_ngram_size: Length
    sampling_topp: Share
    diverse_beam_strength: Weight
    diversity_rate: Weight
    lm_weight: Weight


def check_values(values: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """Return the values of options that a TypedDict `kind` has, with its types; other names are left out.

    Raises ConfigurationError for a value of another type or out of its range.
    """
    try:
        return checked(values, kind)
    except WrongValue as error:
        value = values[error.name]
        remedy = "give a number" if isinstance(value, float) and math.isnan(value) else error.remedy
        if error.name == "temperature" and value == 0:
            remedy = "give a number above 0; for the best output leave out {--sampling} and this"
        raise ConfigurationError(flag(error.name), value, remedy) from error


def check_search_numbers(args: Any) -> None:
    """Raise ConfigurationError for fairseq's generation options `args` with values that no search can use."""
    given = {name: getattr(args, name, None) for name in SearchNumbers.__annotations__}
    values = {name: _whole(value) for name, value in given.items() if value is not None}
    check_values(values, SearchNumbers)
    for option in ("topk", "topp"):
        value = getattr(args, f"sampling_{option}", -1)
        if isinstance(value, (int, float)) and value >= 0 and not getattr(args, "sampling", False):
            raise ConfigurationError(f"--sampling-{option}", value, "is for sampling", "add {--sampling}")
    beam, nbest = values.get("beam", 1), values.get("nbest", 1)
    if nbest > beam:
        raise ConfigurationError("--nbest", nbest, f"more than {{--beam {beam}}}", "lower it or raise {--beam}")


def check_one_search(args: Any) -> None:
    """Raise ConfigurationError if fairseq's generation options `args` choose two searches, which exclude each other."""
    names = "sampling", "diverse_beam_groups", "match_source_len", "diversity_rate"
    chosen = [(name, value) for name in names if (value := getattr(args, name, None) or 0) > 0]
    if len(chosen) > 1:
        (name, value), (other, _), *_ = chosen
        problem = f"is another search than {{{flag(other)}}}"
        raise ConfigurationError(flag(name), None if value is True else value, problem, "leave one of them out")


def check_beam_groups(args: Any) -> None:
    """Raise ConfigurationError unless groups of diverse beam search, in fairseq's options `args`, divide the beam."""
    groups, beam = getattr(args, "diverse_beam_groups", -1), getattr(args, "beam", 5)
    if groups > 0 and beam % groups:
        remedy = f"give {{--beam {next_multiple(beam, groups)}}}, or groups that divide it"
        raise ConfigurationError("--diverse-beam-groups", groups, f"must divide {{--beam {beam}}}", remedy)


def next_multiple(beam: int, groups: int) -> int:
    """Return the smallest beam of at least `beam` that `groups` divide; without groups (0 or less), `beam`."""
    return beam + -beam % groups if groups > 0 else beam


def _whole(value: Any) -> Any:
    """Return a whole number in place of an equal float: programs give max_len_b=200.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
