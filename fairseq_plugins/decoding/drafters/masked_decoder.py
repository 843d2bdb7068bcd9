"""The decoder of both kinds of trained drafters: a cached decoder with mask embeddings."""

from dataclasses import dataclass

from torch import Tensor

from fairseq_plugins.decoding.engine.encoder import EncoderOut
from fairseq_plugins.decoding.engine.engine import Engine
from fairseq_plugins.decoding.engine.graphed_decoder import cached_decoder
from fairseq_plugins.decoding.engine.layout import Chain, Span
from fairseq_plugins.decoding.engine.mask_inputs import MaskInputs
from fairseq_plugins.models.block_nat import BlockNatDecoder


@dataclass(frozen=True)
class DraftOptions:
    """Options of both kinds of trained drafters.

    Attributes:
        keep_log_probs: fill `Draft.log_probs`.
        with_survival: fill `Draft.survival`.
        vocabulary: ids [N] of the tokens to score, None for all.
    """

    keep_log_probs: bool = False
    with_survival: bool = False
    vocabulary: Tensor | None = None


class MaskedDecoder:
    """The decoder of a `block_nat` with its cache; masks stand for the tokens to draft.

    Args:
        decoder: the drafter's.
        engine: runs its layers.
        vocabulary: ids [N] of the tokens to score, None for all.
    """

    def __init__(self, decoder: BlockNatDecoder, engine: Engine, vocabulary: Tensor | None) -> None:
        self.cached = cached_decoder(decoder, engine, vocabulary)
        self.inputs = MaskInputs(decoder)

    def start(self, encoder_out: EncoderOut) -> None:
        """Begin a batch."""
        self.cached.start(encoder_out)
        self.inputs.start(encoder_out)

    def append_rows(self, encoder_out: EncoderOut) -> None:
        """Append admitted sentences after the active ones."""
        self.cached.append_rows(encoder_out)
        self.inputs.append_rows(encoder_out)

    def select_rows(self, rows: Tensor) -> None:
        """Keep only these rows [B'], indices into the current batch."""
        self.cached.select_rows(rows)
        self.inputs.select_rows(rows)

    def step(self, tokens: Tensor, layout: Chain, masks: int = 0, added: Tensor | None = None) -> Tensor:
        """Return hidden states [B, T, D]; arguments as for `CachedDecoder.step`."""
        return self.cached.step(tokens, layout, masks=masks, mask_inputs=self.inputs, added=added)

    def write_kv(self, key_value: Tensor, lengths: Tensor, span: Span) -> None:
        """Write keys and values as `CachedDecoder.write_kv` does."""
        self.cached.write_kv(key_value, lengths, span)

    def project(self, hidden: Tensor) -> Tensor:
        """Return scores [..., N] of hidden states [..., D]."""
        return self.cached.project(hidden)
