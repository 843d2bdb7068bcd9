"""What both kinds of trained drafters run on: a cached decoder, what its masks are fed, and how to draft."""

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
    """What both kinds of trained drafters heed.

    Attributes:
        keep_log_probs: hand the drafter's log-probabilities on in `Draft.log_probs`.
        with_survival: say how likely each token is to be accepted, in `Draft.survival`.
        vocabulary: ids [N] of the tokens to choose among, None for all.
    """

    keep_log_probs: bool = False
    with_survival: bool = False
    vocabulary: Tensor | None = None


class MaskedDecoder:
    """The decoder of a `block_nat` with its cache, in which masks stand for the tokens to be drafted.

    Args:
        decoder: the drafter's.
        engine: what it runs on.
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
        """More sentences come in after those present."""
        self.cached.append_rows(encoder_out)
        self.inputs.append_rows(encoder_out)

    def select_rows(self, rows: Tensor) -> None:
        """Go on with these sentences only; rows [B'] are indices into the current batch."""
        self.cached.select_rows(rows)
        self.inputs.select_rows(rows)

    def step(self, tokens: Tensor, layout: Chain, masks: int = 0, added: Tensor | None = None) -> Tensor:
        """Hidden states [B, T, D]; arguments as for `CachedDecoder.step`."""
        return self.cached.step(tokens, layout, masks=masks, mask_inputs=self.inputs, added=added)

    def write_kv(self, key_value: Tensor, lengths: Tensor, span: Span) -> None:
        """As `CachedDecoder.write_kv`."""
        self.cached.write_kv(key_value, lengths, span)

    def project(self, hidden: Tensor) -> Tensor:
        """Scores [..., N] of hidden states [..., D]."""
        return self.cached.project(hidden)
