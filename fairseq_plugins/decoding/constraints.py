"""fairseq's generation options: limits, penalties, prefixes, forbidden tokens and n-grams; which are refused."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_plugins.decoding.suppression import SuppressedTokens, id_tensor
from fairseq_plugins.errors import ConfigurationError


class LimitMasks(NamedTuple):
    """Positions [B, T] at which limits apply; None for nowhere.

    Attributes:
        eos_forbidden, eos_forced: where fairseq forbids EOS, and where it forces EOS.
        is_beginning: where outputs begin, if tokens are suppressed there.
    """

    eos_forbidden: Tensor | None = None
    eos_forced: Tensor | None = None
    is_beginning: Tensor | None = None


@dataclass(frozen=True)
class Constraints:
    """The limits of one batch, as fairseq's `SequenceGenerator` imposes them."""

    pad: int
    unk: int
    eos: int
    max_len: int  # most tokens of an output before its EOS
    min_len: int = 1  # fewest tokens of an output before its EOS
    unk_penalty: float = 0.0  # subtracted from the log-probability of the unknown word
    prefix: Tensor | None = None  # [B, P], the first tokens of every output, `--prefix-size`; free where it is `pad`
    no_repeat_ngram_size: int = 0  # no output repeats an n-gram of this size; 0 for no limit
    suppressed: SuppressedTokens = SuppressedTokens()

    def apply(self, log_probs: Tensor, lengths: Tensor, shortest: int, longest: int) -> None:
        """Set the log-probabilities [B, T, V] of forbidden tokens to -inf, in place; `lengths` as for `masks`."""
        self.apply_masks(log_probs, self.masks(lengths, shortest, longest, log_probs.size(1)))

    def masks(self, lengths: Tensor, shortest: int, longest: int, width: int) -> LimitMasks:
        """Return where limits apply.

        Args:
            lengths: [B], tokens before the first of T columns; `shortest` and `longest` are their extremes.
            width: T.
        """
        may_forbid, may_force = shortest < self.min_len, longest + width > self.max_len
        may_begin = bool(self.suppressed.at_beginning) and shortest <= self.beginning < longest + width
        if not (may_forbid or may_force or may_begin):
            return LimitMasks()
        position = lengths[:, None] + torch.arange(width, device=lengths.device)
        return LimitMasks(
            self.forbids_eos(position) if may_forbid else None,
            position >= self.max_len if may_force else None,
            position == self.beginning if may_begin else None,
        )

    def masks_at(self, position: Tensor, max_len: Tensor) -> LimitMasks:
        """Return where limits apply among positions [B, T], without knowing any on the host; `max_len` is [B, 1]."""
        is_beginning = position == self.beginning if self.suppressed.at_beginning else None
        return LimitMasks(self.forbids_eos(position), position >= max_len, is_beginning)

    def apply_masks(self, log_probs: Tensor, masks: LimitMasks) -> None:
        """Change log-probabilities as `apply` does, with its masks."""
        log_probs.select(2, self.pad).fill_(-torch.inf)
        if self.unk_penalty != 0:
            log_probs[..., self.unk] -= self.unk_penalty
        end = log_probs[..., self.eos]
        forced_end = None if masks.eos_forced is None else end.clone()
        if masks.eos_forbidden is not None:
            end.masked_fill_(masks.eos_forbidden, -torch.inf)
        self._suppress(log_probs, masks.is_beginning)
        if masks.eos_forced is not None and forced_end is not None:
            log_probs.masked_fill_(masks.eos_forced[:, :, None], -torch.inf)
            end.copy_(torch.where(masks.eos_forced, forced_end, end))

    def _suppress(self, scores: Tensor, is_beginning: Tensor | None) -> None:
        """Set scores [B, T, V] of suppressed tokens to -inf."""
        everywhere, at_beginning = self.suppressed
        if everywhere:
            scores.index_fill_(2, id_tensor(everywhere, scores.device), -torch.inf)
        if is_beginning is not None:
            columns = id_tensor(at_beginning, scores.device)
            scores[..., columns] = scores[..., columns].masked_fill(is_beginning[:, :, None], -torch.inf)

    @property
    def beginning(self) -> int:
        """The first position after a given prefix."""
        return 0 if self.prefix is None else min(self.prefix.size(1), self.max_len)

    def forbids_eos(self, position: Tensor) -> Tensor:
        """Return where EOS is forbidden at positions [B, T]; in a given prefix fairseq ignores the minimum length."""
        is_forbidden = position < self.min_len
        return is_forbidden if self.prefix is None else is_forbidden & (position >= self.beginning)

    def penalised(self, log_probs: Tensor, tokens: Tensor) -> Tensor:
        """Subtract the unknown-word penalty from log-probabilities [...] of tokens [...], as `apply` does."""
        if self.unk_penalty == 0:
            return log_probs
        # Not multiplied: an infinite penalty would make all others NaN.
        return torch.where(tokens == self.unk, log_probs - self.unk_penalty, log_probs)

    def given_prefix(self) -> tuple[Tensor, Tensor] | None:
        """Return the tokens [B, P] of `--prefix-size`, and how many [B] come before the first free one; or None."""
        if self.prefix is None:
            return None
        tokens = self.prefix[:, : self.max_len]
        return tokens, (tokens != self.pad).long().cumprod(1).sum(1)


def forbid_repetition(log_probs: Tensor, tokens: Tensor, lengths: Tensor, size: int) -> None:
    """Set tokens that would repeat an n-gram to -inf, as Hugging Face and fairseq's CUDA extension do.

    Args:
        log_probs: [B, T, V], changed in place; column t is the token after `lengths` + t tokens.
        tokens: [B, L], L >= `lengths` + T, starting with the beginning-of-sentence symbol, which is part of n-grams.
        lengths: [B], number of tokens after that symbol before column 0.
        size: n.
    """
    width = tokens.size(1)
    if width < size:
        return
    last = lengths[:, None] + torch.arange(log_probs.size(1), device=tokens.device)
    begin = last - (size - 2)  # of the n - 1 tokens before a column
    positions = (begin[:, :, None] + torch.arange(size - 1, device=tokens.device)).clamp(min=0)
    before = tokens.gather(1, positions.flatten(1)).view(*last.shape, size - 1)
    grams = tokens.unfold(1, size, 1)
    ends = torch.arange(size - 1, width, device=tokens.device)
    repeats = (grams[:, None, :, :-1] == before[:, :, None]).all(-1)
    repeats &= (ends <= last[:, :, None]) & (begin >= 0)[:, :, None]
    row, column, gram = repeats.nonzero().unbind(1)
    log_probs[row, column, grams[row, gram, -1]] = -torch.inf


def refuse_search_options(args: Any, prefix_allowed_tokens_fn: Any, decoder: str, searches_beams: bool = False) -> None:
    """Raise ConfigurationError for fairseq's generation options `args` that the decoder's search does not support."""
    samples = getattr(args, "sampling", False)
    of_beams = {
        "diverse-beam-groups": getattr(args, "diverse_beam_groups", -1) > 0,
        "diversity-rate": getattr(args, "diversity_rate", -1) > -1,
        "match-source-len": getattr(args, "match_source_len", False),
        "constraints": getattr(args, "constraints", None),
        "nbest": getattr(args, "nbest", 1) > 1 and not samples,
    }
    refused = {
        "retain-dropout": getattr(args, "retain_dropout", False),
        "prefix-allowed-tokens-fn": prefix_allowed_tokens_fn is not None,
    }
    for options, remedy in ({} if searches_beams else of_beams, "fast-beam"), (refused, "beam"):
        for option, is_set in options.items():
            if is_set:
                problem = f"is not supported by {{--decoder {decoder}}}"
                raise ConfigurationError(f"--{option}", None, problem, f"leave it out or use {{--decoder {remedy}}}")
    if getattr(args, "no_repeat_ngram_size", 0) == 1:
        problem = "forbids the end of the sentence, too, which is its first token"
        raise ConfigurationError("--no-repeat-ngram-size", 1, problem, "give 2 or more")


def repeat_ngram_size(generator: Any) -> int:
    """Return `--no-repeat-ngram-size` of fairseq's generator."""
    blocker = getattr(generator, "repeat_ngram_blocker", None)
    return 0 if blocker is None else blocker.no_repeat_ngram_size


def constraints_of(generator: Any, net_input: Mapping[str, Any], prefix: Tensor | None) -> Constraints:
    """Return the constraints of a batch, from a generator's settings, sources [B, S] and given prefixes [B, P].

    Raises ConfigurationError for a minimum length above the maximum.
    """
    width = net_input["src_tokens"].size(1)
    max_len = min(int(generator.max_len_a * width + generator.max_len_b), generator.max_len - 1)
    if generator.match_source_len:
        max_len = int(net_input["src_lengths"].max())
    if generator.min_len > max_len:
        problem = f"longer than the longest output allowed ({max_len})"
        raise ConfigurationError("--min-len", generator.min_len, problem, "lower it or raise {--max-len-b}")
    suppressed = generator.token_indices_to_suppress
    return Constraints(
        pad=generator.pad,
        unk=generator.unk,
        eos=generator.eos,
        max_len=max_len,
        min_len=generator.min_len,
        unk_penalty=generator.unk_penalty,
        prefix=prefix,
        no_repeat_ngram_size=repeat_ngram_size(generator),
        suppressed=SuppressedTokens(
            () if suppressed is None else tuple(sorted(suppressed.tolist())), generator.begin_suppressed
        ),
    )
