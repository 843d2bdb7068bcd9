"""The decoder of both kinds of trained drafters: a cached decoder with mask embeddings."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fairseq_plugins.decoding.reference.cached_decoder import CachedDecoder
from fairseq_plugins.decoding.reference.drafters.path import DraftOptions, draft_of
from fairseq_plugins.decoding.reference.encoder import EncoderOut
from fairseq_plugins.decoding.reference.fixed_shapes import by_row_blocks
from fairseq_plugins.decoding.reference.layout import Chain
from fairseq_plugins.decoding.reference.mask_embeddings import MaskEmbeddings
from fairseq_plugins.decoding.reference.state import Draft


class MaskedDecoder:
    """The decoder of a `block_nat` with cache and mask embeddings, for drafts of at most `block_size` tokens, k."""

    def __init__(self, cached: CachedDecoder, block_size: int, options: DraftOptions) -> None:
        self.model, self.cached, self.block_size = cached.decoder, cached, block_size
        # Output layers other than a linear one score all tokens.
        self.options = replace(options, vocabulary=cached.vocabulary)
        self.mask_embeddings = MaskEmbeddings(cached.decoder, cached.engine.batch_invariant)

    def start(self, encoder_out: EncoderOut) -> None:
        """Begin a batch."""
        self.cached.start(encoder_out)
        self.mask_embeddings.start(encoder_out)

    def append_rows(self, encoder_out: EncoderOut) -> None:
        """Append admitted sentences after the active ones."""
        self.cached.append_rows(encoder_out)
        self.mask_embeddings.append_rows(encoder_out)

    def select_rows(self, rows: Tensor) -> None:
        """Keep only these rows [B'], indices into the current batch."""
        self.cached.select_rows(rows)
        self.mask_embeddings.select_rows(rows)

    def draft(
        self,
        width: int,
        tokens: Sequence[Tensor],
        layout: Chain,
        ends: Tensor | None = None,
        added: Tensor | None = None,
        keys: Tensor | None = None,
    ) -> Draft:
        """Run a step and draft from the states of its block.

        Args:
            width: K.
            tokens: ids [B, any], to be concatenated.
            layout, added: as for `CachedDecoder.step`.
            ends: [B], output lengths, where the block begins after the last token of the output; None where it begins
                with it.
            keys: [B, 4], those of the noise, for sampling.
        """
        inputs = {} if ends is None else {"ends": ends[:, None]}
        if keys is not None:
            inputs["keys"] = keys
        drafted, survival, log_probs = self._step(width, tokens, layout, inputs, added)
        assert drafted is not None
        return Draft(drafted, survival=survival, log_probs=log_probs)

    def _step(
        self, width: int, tokens: Sequence[Tensor], layout: Chain, inputs: dict[str, Tensor], added: Tensor | None
    ) -> Sequence[Tensor | None]:
        """Run a step, and `_draft_of_block` with these further inputs."""
        joined = tokens[0] if len(tokens) == 1 else torch.cat(list(tokens), dim=1)
        inputs |= {"tokens": joined, "lengths": layout.lengths[:, None]}
        hidden = self.cached.step(joined, layout, mask_embeddings=self.mask_embeddings, added=added)
        return self._draft_of_block(width, hidden, None, inputs)

    def _draft_of_block(
        self, width: int, hidden: Tensor, states: list[Tensor] | None, inputs: dict[str, Tensor]
    ) -> tuple[Tensor | None, ...]:
        """Return tokens [B, K] of a block of `width`, and survival and log-probabilities if the draft has them.

        If the drafted block is shorter, the caller cuts off the columns after it, which come from padding. They change
        no token before them, since tokens are chosen from left to right.
        """
        tokens = inputs["tokens"]
        if "ends" in inputs:
            # Indices that would be out of range: those of padding rows, and of columns after a shorter block.
            last = (inputs["ends"] - inputs["lengths"]).clamp(0, hidden.size(1) - 1)
            columns = (last + torch.arange(1, width + 1, device=last.device)).clamp(max=hidden.size(1) - 1)
            hidden = hidden.gather(1, columns[:, :, None].expand(-1, -1, hidden.size(2)))
            tokens = tokens.gather(1, last)
        noise_at: tuple[()] | tuple[Tensor, Tensor] = ()
        if "keys" in inputs:
            begin = inputs.get("ends", inputs["lengths"])
            noise_at = inputs["keys"], begin + torch.arange(width, device=begin.device)
        hidden = hidden[:, :width]

        def choose(scores: Tensor, hidden: Tensor, last: Tensor, *noise: Tensor) -> tuple[Tensor | None, ...]:
            at = (noise[0], noise[1]) if noise else None
            draft = draft_of(self.model, scores, hidden, last, self.options, at)
            return draft.tokens, draft.survival, draft.log_probs

        rows = self.cached.project(hidden), hidden, tokens[:, :1], *noise_at
        return by_row_blocks(choose, *rows) if self.cached.engine.batch_invariant else choose(*rows)
