"""What the masks of a drafter are fed: not a word's embedding, but something of every position and source."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_plugins.decoding.engine.rows import cat_padded
from fairseq_plugins.models.block_nat import BlockNatDecoder

# Positions are computed so many at a time.
_TOGETHER = 32


class MaskInputs:
    """Computed for many positions at once, and kept as long as the batch: the source does not change.

    Args:
        decoder: the drafter's.
    """

    def __init__(self, decoder: BlockNatDecoder) -> None:
        self.decoder = decoder
        self.encoder_out: dict[str, Tensor] = {}
        self.computed: Tensor | None = None

    def start(self, encoder_out: dict[str, list[Tensor]]) -> None:
        """Begin a batch; reads `encoder_embedding` [B, S, D] and `encoder_padding_mask` [B, S], if there are any."""
        names = ("encoder_embedding", "encoder_padding_mask")
        self.encoder_out = {name: encoder_out[name][0] for name in names if encoder_out.get(name)}
        self.computed = None

    def append_rows(self, encoder_out: dict[str, list[Tensor]]) -> None:
        """More sentences come in after those present; their padded length may be another one."""
        present = self.encoder_out
        self.start(encoder_out)
        padding = {"encoder_embedding": 0, "encoder_padding_mask": True}
        self.encoder_out = {
            name: cat_padded(present[name], new, dim=1, value=padding[name]) for name, new in self.encoder_out.items()
        }

    def select_rows(self, rows: Tensor) -> None:
        """Go on with these sentences only; rows [B'] are indices into the current batch."""
        self.encoder_out = {name: value.index_select(0, rows) for name, value in self.encoder_out.items()}
        if self.computed is not None and self.computed.dim() == 3:
            self.computed = self.computed.index_select(0, rows)

    def table(self, batch: int, positions: int) -> Tensor:
        """What masks are fed at positions 0 .. `positions` - 1, and maybe later ones: [B, P, D], or [D] everywhere."""
        if self.computed is None or (self.computed.dim() == 3 and self.computed.size(1) < positions):
            # The more the longer the sentence is, so that it is not often done anew.
            before = 0 if self.computed is None else self.computed.size(1)
            count = max(positions + -positions % _TOGETHER, 2 * before)
            numbers = torch.arange(count, device=self.decoder.mask_vector.device)
            encoder_out = {name: [value] for name, value in self.encoder_out.items()}
            self.computed = self.decoder.mask_vectors(numbers.expand(batch, -1), encoder_out)
        return self.computed


@dataclass
class FixedInputs:
    """The same where somebody else says what masks are fed, as the inputs of a CUDA graph lie where they lie."""

    value: Tensor | None = None

    def table(self, batch: int, positions: int) -> Tensor:
        """As `MaskInputs.table`."""
        assert self.value is not None
        return self.value
