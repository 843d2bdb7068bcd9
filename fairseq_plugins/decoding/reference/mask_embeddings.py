"""Compute mask embeddings, the inputs of a drafter's masks, which may depend on position and source."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from fairseq_plugins.decoding.reference.fixed_shapes import linear, soft_copy
from fairseq_plugins.decoding.reference.rows import cat_padded
from fairseq_plugins.models.block_nat import BlockNatDecoder

_CHUNK = 32  # the number of computed positions is a multiple of this


class MaskTable(Protocol):
    """Gives a step of a decoder the mask embeddings of its batch."""

    def table(self, batch: int, positions: int) -> Tensor:
        """Return mask embeddings of at least `positions` positions, [B, P, D]; [D] if all positions have the same."""


class MaskEmbeddings:
    """Cache of the mask embeddings of a batch, which depend on positions and sources, not on the output.

    If `batch_invariant` those of a sentence do not depend on the others, to the last bit.
    """

    def __init__(self, decoder: BlockNatDecoder, batch_invariant: bool = False) -> None:
        self.decoder = decoder
        self.operations: dict[str, Callable[..., Tensor]] = (
            {"linear": linear, "attend": soft_copy} if batch_invariant else {}
        )
        self.encoder_out: dict[str, Tensor] = {}
        self.computed: Tensor | None = None

    def start(self, encoder_out: dict[str, list[Tensor]]) -> None:
        """Begin a batch; reads `encoder_embedding` [B, S, D] and `encoder_padding_mask` [B, S], if there are any."""
        names = ("encoder_embedding", "encoder_padding_mask")
        self.encoder_out = {name: encoder_out[name][0] for name in names if encoder_out.get(name)}
        self.computed = None

    def append_rows(self, encoder_out: dict[str, list[Tensor]]) -> None:
        """Append sentences, whose padded length may differ."""
        present = self.encoder_out
        self.start(encoder_out)
        padding = {"encoder_embedding": 0, "encoder_padding_mask": True}
        self.encoder_out = {
            name: cat_padded(present[name], new, dim=1, value=padding[name]) for name, new in self.encoder_out.items()
        }

    def select_rows(self, rows: Tensor) -> None:
        """Keep only these rows [B'], indices into the current batch."""
        self.encoder_out = {name: value.index_select(0, rows) for name, value in self.encoder_out.items()}
        if self.computed is not None and self.computed.dim() == 3:
            self.computed = self.computed.index_select(0, rows)

    def table(self, batch: int, positions: int) -> Tensor:
        """Return mask embeddings as `MaskTable.table` does."""
        if self.computed is None or (self.computed.dim() == 3 and self.computed.size(1) < positions):
            # Grows geometrically, so that long outputs need few computations.
            before = 0 if self.computed is None else self.computed.size(1)
            count = max(positions + -positions % _CHUNK, 2 * before)
            position = torch.arange(count, device=self.decoder.mask_vector.device)
            encoder_out = {name: [value] for name, value in self.encoder_out.items()}
            self.computed = self.decoder.mask_vectors(position.expand(batch, -1), encoder_out, **self.operations)
        return self.computed
