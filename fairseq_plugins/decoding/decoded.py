"""What every engine returns: outputs, and iterations of those that are streamed."""

from dataclasses import dataclass

from torch import Tensor


@dataclass
class Hypothesis:
    """An output of N tokens, EOS included."""

    tokens: Tensor  # [N]
    log_probs: Tensor  # [N], of the tokens
    score: Tensor  # sum of `log_probs`, before length normalisation


@dataclass
class Decoded:
    """Result of decoding a batch."""

    outputs: list[list[Hypothesis]]  # of every sentence, in the order in which they ended; one in greedy search
    emitted: list[list[int]]  # for every sentence the number of tokens that each iteration emitted


@dataclass
class StepOutput:
    """Result of one iteration for a sentence."""

    tokens: list[int]  # emitted tokens; none after the end
    drafted: int  # number of drafted tokens that were verified
    accepted: int  # number of these that were accepted
    finished: bool  # whether the output has ended
