"""Sampling: the best token by noisy scores, among those that fairseq's `--sampling-topk` or `--sampling-topp` keeps."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fairseq_plugins.decoding.reference.noise import noise, noise_keys

# scores [B, T, V] -> tokens [B, T]
Choose = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Sampling:
    """fairseq's options of sampling.

    Attributes:
        topk: number of tokens that may be drawn at a position; 0 for no limit.
        topp: draw from the smallest set of tokens whose probability reaches this; 0 for no limit.
        temperature: divides the scores of drafters; those of the verifier are already divided.
    """

    topk: int = 0
    topp: float = 0.0
    temperature: float = 1.0

    def noise(self, keys: Tensor, positions: Tensor, vocabulary: int, ids: Tensor | None = None) -> Tensor:
        """Return the noise [B, T, N] of the tokens `ids` [N] of a vocabulary, of all of them by default.

        `keys` [B, 4] are those of `noise_keys`; `positions` [B, T] are in the outputs.
        """
        values = noise(keys, positions, vocabulary)
        return values if ids is None else values[..., ids]

    def choose(self, added: Tensor, normaliser: Tensor | None = None) -> Choose:
        """Return the function that chooses tokens with this noise [B, T, V]; `normaliser` is that of `keep`."""
        return lambda scores: (self.keep(scores.float(), normaliser) + added).argmax(-1)

    def keep(self, scores: Tensor, normaliser: Tensor | None = None) -> Tensor:
        """Return scores [..., V] with -inf for tokens that must not be drawn, as fairseq's `search.Sampling` does.

        With `topp`, `topk` has no effect. Tokens as good as the last kept one are kept, too.

        Args:
            scores: logits or log-probabilities; -inf for forbidden tokens.
            normaliser: [..., 1], subtracted from the scores it gives log-probabilities; None if they are these.
        """
        if self.topp > 0:
            probabilities = (scores if normaliser is None else scores - normaliser).exp()
            ordered = probabilities.sort(descending=True).values
            last = (ordered.cumsum(-1) < self.topp).sum(-1, keepdim=True).clamp(max=scores.size(-1) - 1)
            return scores.masked_fill(probabilities < ordered.gather(-1, last), -torch.inf)
        if self.topk > 0:
            least = scores.topk(min(self.topk, scores.size(-1))).values[..., -1:]
            return scores.masked_fill(scores < least, -torch.inf)
        return scores

    def normaliser(self, logits: Tensor) -> Tensor | None:
        """Return what `keep` needs besides logits [..., V]: their normaliser [..., 1], or None."""
        return logits.float().logsumexp(-1, keepdim=True) if self.topp > 0 else None


def with_samples(sample: dict[str, Any], count: int, seed: int) -> dict[str, Any]:
    """Return a fairseq batch with each sentence `count` times in a row, and the keys of their noise, `noise_keys`.

    The noise depends on the seed and on the number of a sentence: `numbers`, else `id`, else its place.
    """
    size = len(sample["net_input"]["src_tokens"])
    device = sample["net_input"]["src_tokens"].device

    def repeated(value: Any) -> Any:
        if isinstance(value, Tensor) and value.dim() > 0 and len(value) == size:
            return value.repeat_interleave(count, 0)
        return [each for each in value for _ in range(count)] if isinstance(value, list) else value

    ids = sample.get("numbers", sample.get("id"))
    ids = torch.arange(size, device=device) if ids is None else ids.to(device)
    whole = {name: repeated(value) for name, value in sample.items() if name != "net_input"}
    net_input = {name: repeated(value) for name, value in sample["net_input"].items()}
    keys = noise_keys(seed, repeated(ids), torch.arange(count, device=device).repeat(size))
    return {**whole, "net_input": net_input, "noise_keys": keys}


def group_samples(hypotheses: list[list[dict[str, Any]]], count: int) -> list[list[dict[str, Any]]]:
    """Return the samples of each sentence, best score first, from the outputs of `with_samples`."""
    groups = (hypotheses[begin : begin + count] for begin in range(0, len(hypotheses), count))
    return [sorted((only for (only,) in group), key=lambda sample: -float(sample["score"])) for group in groups]
