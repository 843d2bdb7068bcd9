"""Training blocks of a drafter: random prefixes, masked next k tokens, glancing; without loops over sentences."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass
class Blocks:
    """Inputs and targets of a drafter, for B sentences of at most M tokens and N blocks of K inputs each.

    The inputs of a block are K masks, and the targets the tokens at their positions. The inputs of an anchored block
    are the last token of its prefix and K - 1 masks, and every target is the next token after its input; attention in
    it is causal, as in the verifier.
    """

    tokens: Tensor  # [B, M + N*K], decoder input: the sentence shifted right, then the masked blocks
    positions: Tensor  # [B, M + N*K], position of every input in the sentence
    # [B, M + N*K, M + N*K], True where the row's input may attend to the column's. With the verifier's states as
    # prefix it has the rows of the blocks only: [B, N*K, M + N*K].
    visible: Tensor
    targets: Tensor  # [B, N*K], target of every input of the blocks; pad beyond the end of the sentence
    block_size: int  # K
    anchored: bool = False

    @property
    def draft_positions(self) -> Tensor:
        """Position of every target in its draft, [N*K], from 1 to K."""
        return torch.arange(self.targets.size(1), device=self.targets.device) % self.block_size + 1

    @property
    def prefix_width(self) -> int:
        return self.tokens.size(1) - self.targets.size(1)

    @property
    def previous(self) -> Tensor:
        """The token of the sentence before every target, [B, N*K]."""
        position = self.positions[:, self.prefix_width :] - int(not self.anchored)
        return self.tokens.gather(1, position.clamp(max=self.prefix_width - 1))

    @property
    def masks(self) -> Tensor:
        """The inputs of the blocks, [B, N*K]."""
        return self.tokens[:, self.prefix_width :]


def sample_blocks(
    target: Tensor,
    prev_output_tokens: Tensor,
    block_size: int,
    blocks_per_sentence: int,
    attention: str,
    pad: int,
    mask: int,
    generator: torch.Generator | None = None,
) -> Blocks:
    """Draw prefixes and mask the `block_size` tokens after each (GAD section 3.1).

    A prefix has 0 to m tokens of a sentence of m tokens and EOS, so that a block always has at least one target.
    Masks after EOS are inputs without targets, since a drafter cannot know where the sentence ends.

    Args:
        target: [B, M], sentences with EOS, padded on the right.
        prev_output_tokens: [B, M], `target` shifted right, as in fairseq.
        block_size: masks per block, K.
        blocks_per_sentence: blocks per sentence, N; each sees its own prefix and itself only.
        attention: "prefix-causal": the prefix attends causally; "full": prefix and masks attend to all (N = 1);
            "features": blocks are anchored, and attend to the verifier's states of the tokens before the anchor.
        pad: padding symbol.
        mask: id of the mask vector.
        generator: random generator on the device of `target`; torch's own by default.
    """
    batch, width = target.shape
    device = target.device
    lengths = (target != pad).sum(1)
    draw = torch.rand(batch, blocks_per_sentence, device=device, generator=generator)
    prefix = (draw * lengths[:, None]).long()  # [B, N]

    anchored = attention == "features"
    offsets = torch.arange(block_size, device=device)
    position = prefix[:, :, None] + offsets  # of the target token
    inside = position < lengths[:, None, None]
    targets = target.gather(1, position.clamp(max=width - 1).flatten(1)).masked_fill(~inside.flatten(1), pad)

    column = torch.arange(width, device=device)
    masks = target.new_full(position.shape, mask)
    if anchored:
        masks[:, :, 0] = prev_output_tokens.gather(1, prefix)
    masks = masks.flatten(1)
    positions = torch.cat([column.expand(batch, -1), (position + (not anchored)).flatten(1)], dim=1)

    block_of = torch.arange(blocks_per_sentence, device=device).repeat_interleave(block_size)
    prefix_of = prefix.repeat_interleave(block_size, dim=1)[:, :, None]  # [B, N*K, 1]
    known = column < prefix_of if anchored else column <= prefix_of
    same_block = block_of[:, None] == block_of
    if anchored:
        # Causal, as in the verifier.
        same_block = same_block.tril()
    masks_see = torch.cat([known, same_block.expand(batch, -1, -1)], dim=2)
    prefix_sees = [] if anchored else [_seen_by_prefix(column <= prefix[:, :1], block_of.numel(), attention)]
    return Blocks(
        tokens=torch.cat([prev_output_tokens, masks], dim=1),
        positions=positions,
        visible=torch.cat([*prefix_sees, masks_see], dim=1),
        targets=targets,
        block_size=block_size,
        anchored=anchored,
    )


def _seen_by_prefix(known: Tensor, masks: int, attention: str) -> Tensor:
    """Return what the inputs before the masks attend to, [B, M, M + masks].

    Args:
        known: [B, M], the inputs of the prefix of the first block.
        masks: number of masks.
        attention: as for `sample_blocks`, but not "features".
    """
    batch, width = known.shape
    if attention == "prefix-causal":
        causal = torch.ones(width, width, dtype=torch.bool, device=known.device).tril()
        return torch.cat([causal, causal.new_zeros(width, masks)], dim=1).expand(batch, -1, -1)
    # No other row sees tokens after the prefix. These see themselves, since softmax over no token is NaN.
    diagonal = torch.eye(width, dtype=torch.bool, device=known.device)
    return torch.cat([known[:, None] & known[:, :, None] | diagonal, known[:, :, None].expand(-1, -1, masks)], dim=2)


def glance(blocks: Blocks, predicted: Tensor, ratio: float, pad: int) -> Blocks:
    """Reveal targets in proportion to the drafter's errors: glancing (Qian et al. 2021, section 3).

    In every block, `floor(ratio * wrong predictions)` randomly chosen targets replace their masks and are no longer
    targets. In anchored blocks a token is revealed as the next input; the last one cannot be.

    Args:
        blocks: the fully masked blocks.
        predicted: [B, N*K], the drafter's predictions.
        ratio: share of the wrong predictions to reveal.
        pad: padding symbol.
    """
    shape = (blocks.targets.size(0), -1, blocks.block_size)
    targets = blocks.targets.reshape(shape)
    is_target = targets != pad
    wrong = ((predicted.reshape(shape) != targets) & is_target).sum(2, keepdim=True)
    if blocks.anchored:
        is_target[:, :, -1] = False
    draw = torch.rand(targets.shape, device=targets.device).masked_fill(~is_target, 2.0)
    rank = draw.argsort(2).argsort(2)
    revealed = ((rank < (wrong * ratio).long()) & is_target).flatten(1)
    shift = int(blocks.anchored)
    masks = torch.where(revealed.roll(shift, 1), blocks.targets.roll(shift, 1), blocks.masks)
    return replace(
        blocks,
        tokens=torch.cat([blocks.tokens[:, : blocks.prefix_width], masks], dim=1),
        targets=blocks.targets.masked_fill(revealed, pad),
    )
