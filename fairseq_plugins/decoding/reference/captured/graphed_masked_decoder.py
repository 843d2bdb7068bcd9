"""Draft blocks from CUDA graphs."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from fairseq_plugins.decoding.reference.captured.graphed_decoder import GraphedDecoder, cached_decoder
from fairseq_plugins.decoding.reference.captured.shapes import rounded_up
from fairseq_plugins.decoding.reference.drafters.masked_decoder import MaskedDecoder
from fairseq_plugins.decoding.reference.drafters.path import DraftOptions
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.decoding.reference.layout import Chain
from fairseq_plugins.models.block_nat import BlockNatDecoder


def masked_decoder(decoder: BlockNatDecoder, engine: Engine, block_size: int, options: DraftOptions) -> MaskedDecoder:
    """Return a `MaskedDecoder`, which runs from graphs if the engine has them for the decoder's device."""
    cached = cached_decoder(decoder, engine, options.vocabulary)
    return (GraphedMaskedDecoder if isinstance(cached, GraphedDecoder) else MaskedDecoder)(cached, block_size, options)


class GraphedMaskedDecoder(MaskedDecoder):
    """A `MaskedDecoder` whose steps and drafts are captured together."""

    def _step(
        self,
        width: int,
        tokens: Sequence[Tensor],
        layout: Chain,
        inputs: dict[str, Tensor],
        added: Tensor | None,
    ) -> Sequence[Tensor | None]:
        assert isinstance(self.cached, GraphedDecoder)
        # Blocks get shorter near the maximum length. Rounded up, they share a few graphs.
        rounded = min(rounded_up(width), self.block_size)
        block = partial(self._draft_of_block, rounded)
        _, *outputs = self.cached.step_then(block, rounded, tokens, layout, inputs, self.mask_embeddings, added)
        return [None if value is None else value[:, :width] for value in outputs]
