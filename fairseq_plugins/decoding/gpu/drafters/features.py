"""A trained drafter that reads the verifier's states (--drafter-context features), as DFlash (arXiv 2602.06036).

A token's states become keys and values of every layer, once, when the token is emitted.
"""

from collections.abc import Sequence

import torch
import triton

from fairseq_plugins.decoding.gpu.batch import Batch
from fairseq_plugins.decoding.gpu.drafters.path import Path
from fairseq_plugins.decoding.gpu.drafters.trained import MaskWeights, TrainedDrafter
from fairseq_plugins.decoding.gpu.kernels.constants import InputKind
from fairseq_plugins.decoding.gpu.kernels.states import write_states
from fairseq_plugins.decoding.gpu.runner import Input, Tiles, chunks, padded
from fairseq_plugins.decoding.gpu.search import GreedySearch, Verified
from fairseq_plugins.decoding.gpu.weights import Linear, Norm, Transformer, joined


class FeatureDrafter(TrainedDrafter):
    """Drafts with one pass over the last token and masks (csrc/drafters/features.cpp)."""

    def __init__(
        self,
        model: Transformer,
        path: Path,
        mask: MaskWeights,
        layers: Sequence[int],
        reader: Linear,
        projections: Sequence[Linear],
        width: int,
    ) -> None:
        super().__init__(model, path, mask, width)
        self.layers_read, self.reader = tuple(layers), reader
        self.key_value = joined(projections)
        norms = [layer.self_norm for layer in model.layers]
        weights = [norm.weight for norm in norms if norm.weight is not None]
        biases = [norm.bias for norm in norms if norm.bias is not None]
        self.norm = Norm(torch.stack(weights), torch.stack(biases), norms[0].eps)
        self.normalizes = model.layers[0].normalize_before

    def allocate(self, search: GreedySearch) -> None:
        self.take_memory(search, search.sizes.places * max(self.width, 1), search.encoder.model)
        size = search.runner.memory.rows * self.reader.outputs
        self.read = torch.zeros(size, dtype=self.model.embedding.dtype, device=search.device)

    def draft(self, batch: Batch, places: int, width: int) -> None:
        """Run the last token and masks: each row predicts the token after it."""
        width = min(width, self.width)
        self.choose(batch, places, *self.run(batch, places, tokens=1, masks=width - 1, adds=True))

    def observe(self, batch: Batch, verified: Verified) -> None:
        """Turn the states of the verified rows into keys and values, and keep the newest."""
        assert verified.features is not None
        step, model = verified.step, self.model
        read = self.read[: step.rows * self.reader.outputs].view(step.rows, self.reader.outputs)
        self.search.runner.linear(step, Input(verified.features), self.reader, read)
        tiles = Tiles.of(step.rows, model.width, self.runner.dtype)
        weight, bias = self.norm.weight, self.norm.bias
        grid = (triton.cdiv(2 * model.width, tiles.outputs), triton.cdiv(step.rows, tiles.rows), len(model.layers))
        write_states[grid](
            batch.arguments, read, weight, bias, self.key_value.weight,
            read if self.key_value.bias is None else self.key_value.bias, self.cache, step.slots, self.newest,
            step.active, step.rows, step.per_sentence, model.width,
            self.reader.outputs, self.cache.stride(0), eps=self.norm.eps,
            INPUT=int(InputKind.PRE_NORM if self.normalizes else InputKind.PLAIN),
            HAS_BIAS=self.key_value.bias is not None, ROWS=tiles.rows,
            OUTPUTS=tiles.outputs, WIDTH=padded(model.width), num_warps=tiles.warps,
            **chunks(model.width, self.runner.dtype), **self.runner.launch,
        )  # fmt: skip
