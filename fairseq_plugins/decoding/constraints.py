"""fairseq's generation options: length limits, unknown-word penalty, given prefixes; and options that are refused."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fairseq_plugins.errors import ConfigurationError


@dataclass(frozen=True)
class Constraints:
    """The limits of one batch, as fairseq's `SequenceGenerator` imposes them.

    Attributes:
        pad, unk, eos: ids of these symbols.
        max_len: most tokens of an output before its EOS.
        min_len: fewest tokens of an output before its EOS.
        unk_penalty: subtracted from the log-probability of the unknown word.
        prefix: [B, P] of `--prefix-size`, the first tokens of every output, padded with `pad`; None without.
        no_repeat_ngram_size: no output has as many tokens in a row twice; 0 for no limit.
    """

    pad: int
    unk: int
    eos: int
    max_len: int
    min_len: int = 1
    unk_penalty: float = 0.0
    prefix: Tensor | None = None
    no_repeat_ngram_size: int = 0

    def apply(self, log_probs: Tensor, lengths: Tensor, shortest: int, longest: int) -> None:
        """Mask in `log_probs` [B, T, V], in place, the tokens that fairseq's generator forbids at these positions.

        Args:
            log_probs: of the tokens after T columns of every sentence.
            lengths: [B], number of tokens of each sentence; `shortest` and `longest` of them.
        """
        log_probs.select(2, self.pad).fill_(-torch.inf)
        if self.unk_penalty != 0:
            log_probs[..., self.unk] -= self.unk_penalty
        width = log_probs.size(1)
        if shortest >= self.min_len and longest + width <= self.max_len:
            return
        position = lengths[:, None] + torch.arange(width, device=log_probs.device)
        end = log_probs[..., self.eos].masked_fill(self._forbids_eos(position), -torch.inf)
        log_probs.masked_fill_((position >= self.max_len)[:, :, None], -torch.inf)
        log_probs[..., self.eos] = end

    def _forbids_eos(self, position: Tensor) -> Tensor:
        """Return positions [B, T] where EOS is forbidden; fairseq ignores the minimum length in a given prefix."""
        forced_until = 0 if self.prefix is None else min(self.prefix.size(1), self.max_len)
        return (position < self.min_len) & (position >= forced_until)

    def best(self, scores: Tensor, lengths: Tensor, shortest: int, longest: int) -> Tensor:
        """Return the allowed tokens [B, T] with the highest `scores` [B, T, V]; the scores are left unchanged.

        The argmax of log-probabilities is the same unless rounding makes two of them equal.

        Args:
            scores, lengths, shortest, longest: as for `apply`, before softmax.
        """
        has_early = shortest < self.min_len
        changed = {self.pad, *([self.unk] if self.unk_penalty else []), *([self.eos] if has_early else [])}
        # Saves the changed columns only: the scores are the largest tensor of a step.
        before = {token: scores.select(2, token).clone() for token in changed}
        scores.select(2, self.pad).fill_(-torch.inf)
        if self.unk_penalty != 0:
            scores.select(2, self.unk).sub_(self.unk_penalty)
        position = None
        if has_early or longest + scores.size(1) > self.max_len:
            position = lengths[:, None] + torch.arange(scores.size(1), device=scores.device)
            if has_early:
                scores.select(2, self.eos).masked_fill_(self._forbids_eos(position), -torch.inf)
        best = scores.argmax(-1)
        for token, values in before.items():
            scores.select(2, token).copy_(values)
        return best if position is None else best.masked_fill(position >= self.max_len, self.eos)

    def penalised(self, log_probs: Tensor, tokens: Tensor) -> Tensor:
        """Subtract the unknown-word penalty from log-probabilities [...] of tokens [...], as `apply` does."""
        return log_probs if self.unk_penalty == 0 else log_probs - self.unk_penalty * (tokens == self.unk)

    def given_prefix(self) -> tuple[Tensor, Tensor] | None:
        """Return the given prefixes, tokens [B, P] and their lengths [B]; None without `--prefix-size`."""
        if self.prefix is None:
            return None
        tokens = self.prefix[:, : self.max_len]
        return tokens, (tokens != self.pad).long().cumprod(1).sum(1)

    def force_prefix(self, best: Tensor, is_first: bool) -> Tensor:
        """Replace the first of the verifier's tokens [B, T] by the given prefix, in the first iteration."""
        prefix = self.given_prefix() if is_first else None
        if prefix is None:
            return best
        tokens, counts = prefix
        is_given = torch.arange(tokens.size(1), device=best.device) < counts[:, None]
        return torch.cat([torch.where(is_given, tokens, best[:, :-1]), best[:, -1:]], dim=1)


def check_search_numbers(args: Any, searches_beams: bool) -> None:
    """Refuse values that are invalid for any search.

    Args:
        args: fairseq's generation options.
        searches_beams: whether the decoder is a beam search of this plugin.

    Raises:
        ConfigurationError: naming the option.
    """
    beam, temperature, nbest = (getattr(args, name, None) for name in ("beam", "temperature", "nbest"))
    if isinstance(beam, int) and beam < 1:
        raise ConfigurationError(f"--beam {beam}: give at least 1")
    if isinstance(temperature, (int, float)) and not temperature > 0:
        raise ConfigurationError(f"--temperature {temperature}: give a number above 0")
    if searches_beams and isinstance(beam, int) and isinstance(nbest, int) and nbest > beam:
        raise ConfigurationError(f"--nbest {nbest}: more than --beam {beam}; lower it or raise --beam")


def refuse_search_options(args: Any, prefix_allowed_tokens_fn: Any, decoder: str, searches_beams: bool = False) -> None:
    """Refuse generation options that the decoder's search does not support.

    Args:
        args: fairseq's generation options.
        prefix_allowed_tokens_fn: as for fairseq's `build_generator`.
        decoder: name of the decoder.
        searches_beams: whether it keeps several hypotheses.

    Raises:
        ConfigurationError: naming the option.
    """
    refused = {
        "sampling": getattr(args, "sampling", False),
        "diverse-beam-groups": getattr(args, "diverse_beam_groups", -1) > 0,
        "diversity-rate": getattr(args, "diversity_rate", -1) > -1,
        "match-source-len": getattr(args, "match_source_len", False),
        "constraints": getattr(args, "constraints", None),
        "print-alignment": getattr(args, "print_alignment", None),
        "retain-dropout": getattr(args, "retain_dropout", False),
        "nbest": getattr(args, "nbest", 1) > 1 and not searches_beams,
        "prefix-allowed-tokens-fn": prefix_allowed_tokens_fn is not None,
    }
    for option, is_set in refused.items():
        if is_set:
            raise ConfigurationError(
                f"--{option}: is not supported by --decoder {decoder}; leave it out or use --decoder beam"
            )


def refuse_unsupported_settings(generator: Any, searches_beams: bool) -> None:
    """Refuse settings of a `SequenceGenerator` that change the output and are not supported here.

    Args:
        generator: the generator with the settings.
        searches_beams: whether several hypotheses are kept.

    Raises:
        ConfigurationError: naming the option.
    """
    greedy = not searches_beams
    for is_set, option in (
        (greedy and generator.beam_size > 1, "--beam above 1"),
        (generator.lm_model is not None, "--lm-path"),
        (generator.match_source_len, "--match-source-len"),
        (generator.token_indices_to_suppress is not None, "tokens_to_suppress"),
    ):
        if is_set:
            raise ConfigurationError(f"{option} is not supported by this decoder; use --decoder beam")


def constraints_of(generator: Any, source: Tensor, prefix: Tensor | None) -> Constraints:
    """Return the constraints of a batch with sources [B, S] and given prefixes [B, P], from a generator's settings.

    Raises:
        ConfigurationError: for a minimum length above the maximum.
    """
    max_len = min(int(generator.max_len_a * source.size(1) + generator.max_len_b), generator.max_len - 1)
    if generator.min_len > max_len:
        raise ConfigurationError(
            f"--min-len {generator.min_len}: longer than the longest output allowed ({max_len}); "
            "lower it or raise --max-len-b"
        )
    blocker = generator.repeat_ngram_blocker
    return Constraints(
        pad=generator.pad,
        unk=generator.unk,
        eos=generator.eos,
        max_len=max_len,
        min_len=generator.min_len,
        unk_penalty=generator.unk_penalty,
        prefix=prefix,
        no_repeat_ngram_size=0 if blocker is None else blocker.no_repeat_ngram_size,
    )
