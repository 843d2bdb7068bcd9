"""Training blocks of a drafter: random prefixes, the next k tokens masked, glancing. No loop over sentences."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass
class Blocks:
    """What a drafter reads and what it must predict, for B sentences of at most M tokens and N blocks of K inputs.

    The inputs of a block are K masks, and the targets their own tokens. An anchored block is the last token of its
    prefix and K - 1 masks, and every target the token after its input; no place sees a later one, as in the verifier.

    Attributes:
        tokens: [B, M + N*K] decoder input: the sentence shifted right, then the masked blocks.
        positions: [B, M + N*K] place of every input in the sentence.
        visible: [B, M + N*K, M + N*K], True where the row's input may attend to the column's. Where the verifier's
            states stand for the sentence, it has the rows of the blocks only: [B, N*K, M + N*K].
        targets: [B, N*K] what is to be predicted at every input of the blocks; pad beyond the end of the sentence.
        block_size: K.
        anchored: whether the blocks are.
    """

    tokens: Tensor
    positions: Tensor
    visible: Tensor
    targets: Tensor
    block_size: int
    anchored: bool = False

    @property
    def places(self) -> Tensor:
        """Place of every target in its draft, [N*K], from 1 to K."""
        return torch.arange(self.targets.size(1), device=self.targets.device) % self.block_size + 1

    @property
    def prefix_width(self) -> int:
        return self.tokens.size(1) - self.targets.size(1)

    @property
    def previous(self) -> Tensor:
        """The token of the sentence before every target, [B, N*K]."""
        place = self.positions[:, self.prefix_width :] - int(not self.anchored)
        return self.tokens.gather(1, place.clamp(max=self.prefix_width - 1))

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
    The masks past the EOS stay in the input, since a drafter that decodes cannot know where the sentence ends; they
    have no target.

    Args:
        target: [B, M] sentences with EOS, padded on the right.
        prev_output_tokens: [B, M] the same shifted right, as fairseq makes it.
        block_size: masks per block, K.
        blocks_per_sentence: blocks per sentence, N; each sees its own prefix and itself only.
        attention: "prefix-causal": the prefix attends causally; "full": prefix and masks attend to all (N = 1);
            "features": blocks are anchored, and attend to the verifier's states of the tokens before the anchor.
        pad: padding symbol.
        mask: id that stands for the mask vector.
        generator: source of randomness on the device of `target`; torch's own by default.
    """
    batch, width = target.shape
    device = target.device
    lengths = (target != pad).sum(1)
    draw = torch.rand(batch, blocks_per_sentence, device=device, generator=generator)
    prefix = (draw * lengths[:, None]).long()  # [B, N]

    anchored = attention == "features"
    offsets = torch.arange(block_size, device=device)
    place = prefix[:, :, None] + offsets  # place in `target` of what is to be predicted
    inside = place < lengths[:, None, None]
    targets = target.gather(1, place.clamp(max=width - 1).flatten(1)).masked_fill(~inside.flatten(1), pad)

    column = torch.arange(width, device=device)
    masks = target.new_full(place.shape, mask)
    if anchored:
        masks[:, :, 0] = prev_output_tokens.gather(1, prefix)
    masks = masks.flatten(1)
    positions = torch.cat([column.expand(batch, -1), (place + (not anchored)).flatten(1)], dim=1)

    block_of = torch.arange(blocks_per_sentence, device=device).repeat_interleave(block_size)
    prefix_of = prefix.repeat_interleave(block_size, dim=1)[:, :, None]  # [B, N*K, 1]
    known = column < prefix_of if anchored else column <= prefix_of
    together = block_of[:, None] == block_of
    if anchored:
        # As in the verifier no place sees a later one: the first does what the verifier does.
        together = together.tril()
    masks_see = torch.cat([known, together.expand(batch, -1, -1)], dim=2)
    if attention == "features":
        prefix_sees = masks_see[:, :0]
    elif attention == "prefix-causal":
        prefix_sees = torch.cat(
            [column[:, None] >= column, column.new_zeros(width, block_of.numel(), dtype=torch.bool)], dim=1
        ).expand(batch, -1, -1)
    else:
        # Tokens after the prefix are the future: nobody sees them, and they see themselves so that no row is empty.
        known = column <= prefix  # [B, M], one block
        itself = torch.eye(width, dtype=torch.bool, device=device)
        prefix_sees = torch.cat(
            [known[:, None] & known[:, :, None] | itself, known[:, :, None].expand(-1, -1, block_size)], dim=2
        )
    return Blocks(
        tokens=torch.cat([prev_output_tokens, masks], dim=1),
        positions=positions,
        visible=torch.cat([prefix_sees, masks_see], dim=1),
        targets=targets,
        block_size=block_size,
        anchored=anchored,
    )


def glance(blocks: Blocks, predicted: Tensor, ratio: float, pad: int) -> Blocks:
    """Reveal some of the targets where the drafter was wrong: glancing (Qian et al. 2021, section 3).

    Of every block, `floor(ratio * wrong predictions)` randomly chosen targets take the place of their masks, and are
    no targets any more. In anchored blocks a token is revealed as the next input; the last one cannot be.

    Args:
        blocks: the fully masked blocks.
        predicted: [B, N*K] what the drafter predicted for them.
        ratio: share of the wrong predictions to reveal.
        pad: padding symbol.
    """
    shape = (blocks.targets.size(0), -1, blocks.block_size)
    targets = blocks.targets.reshape(shape)
    is_target = targets != pad
    wrong = ((predicted.reshape(shape) != targets) & is_target).sum(2, keepdim=True)
    if blocks.anchored:
        is_target[:, :, -1] = False
    lottery = torch.rand(targets.shape, device=targets.device).masked_fill(~is_target, 2.0)
    rank = lottery.argsort(2).argsort(2)
    revealed = ((rank < (wrong * ratio).long()) & is_target).flatten(1)
    shift = int(blocks.anchored)
    masks = torch.where(revealed.roll(shift, 1), blocks.targets.roll(shift, 1), blocks.masks)
    return replace(
        blocks,
        tokens=torch.cat([blocks.tokens[:, : blocks.prefix_width], masks], dim=1),
        targets=blocks.targets.masked_fill(revealed, pad),
    )
