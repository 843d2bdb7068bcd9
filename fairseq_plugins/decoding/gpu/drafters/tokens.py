"""The trained drafter of GAD and SpecDec (section 3.1): masks after the accepted tokens, filled in one pass.

As csrc/drafters/tokens.cpp, with prefix-causal attention: a draft runs the newly emitted tokens, whose keys and values
stay in a cache, and the masks.
"""

from fairseq_plugins.decoding.gpu.batch import TILE, Batch
from fairseq_plugins.decoding.gpu.drafters.path import Path
from fairseq_plugins.decoding.gpu.drafters.trained import MaskWeights, TrainedDrafter
from fairseq_plugins.decoding.gpu.search import Encoded, EncoderRunner, GreedySearch, Verified
from fairseq_plugins.decoding.gpu.weights import Transformer
from fairseq_plugins.decoding.kernel_module import Unsupported


class TokenDrafter(TrainedDrafter):
    """Drafts with one pass over the last tokens and masks.

    A draft runs as many of the last tokens as an iteration with a draft of its own emits; tokens that are in the cache
    get the same keys and values again. Where more tokens or no draft came before, `observe` fills the cache. Arguments
    as for `KernelModule.token_drafter`.
    """

    def __init__(
        self,
        model: Transformer,
        encoder: Transformer | None,
        path: Path,
        mask: MaskWeights,
        caches_prefix: bool,
        width: int,
    ) -> None:
        if not caches_prefix:
            raise Unsupported("--drafter-attention full: every draft would run the whole prefix again")
        super().__init__(model, path, mask, width)
        self.own_encoder = encoder
        self.is_fallback = False  # whether another drafter drafts in some iterations

    def allocate(self, search: GreedySearch) -> None:
        encoder = search.encoder.model if self.own_encoder is None else self.own_encoder
        self.take_memory(search, 2 * search.sizes.rows, encoder)
        self.encoder_runner = None
        if self.own_encoder is not None:
            self.encoder_runner = EncoderRunner(self.own_encoder, search.encoder.most_tiles, search.batch)
            self.encoder_runner.input = search.encoder.input

    def begin(self, batch: Batch, encoded: Encoded) -> None:
        """Encode the sources, unless the verifier's encoder is shared, and write their keys and values."""
        if self.encoder_runner is not None:
            encoded = self.encoder_runner.encode(encoded.step.rows // TILE)
        super().begin(batch, encoded)

    def draft(self, batch: Batch, places: int, width: int) -> None:
        """Run the last tokens and masks, and choose a token for each mask."""
        width, tokens = min(width, self.width), self.width + 1
        step, state = self.run(batch, places, tokens, masks=width, in_block=True)
        self.choose(batch, places, step, state, skipped=tokens)

    def observe(self, batch: Batch, verified: Verified) -> None:
        """Fill the cache if the next draft cannot."""
        emitted, places = verified.step.per_sentence, verified.step.rows // verified.step.per_sentence
        if 1 < emitted <= self.width + 1 and not self.is_fallback:
            return
        # Tokens of this iteration, and those before it, which no draft has run.
        self.run(batch, places, tokens=max(emitted, self.width + 1) + 1, masks=0)
