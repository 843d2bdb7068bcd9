"""Heads on the verifier predict the next tokens from its last verification (Stern et al. 2018, section 4).

As csrc/drafters/heads.cpp: the heads share a hidden layer, and each adds its output to the verifier's state.
"""

from dataclasses import replace

import torch
import triton

from fairseq_plugins.decoding.gpu.batch import Batch
from fairseq_plugins.decoding.gpu.drafter import Drafter
from fairseq_plugins.decoding.gpu.kernels.constants import Activation
from fairseq_plugins.decoding.gpu.kernels.drafts import draft_given
from fairseq_plugins.decoding.gpu.runner import Input
from fairseq_plugins.decoding.gpu.search import GreedySearch, Verified
from fairseq_plugins.decoding.gpu.vocabulary import choose_best, make_scores, score
from fairseq_plugins.decoding.gpu.weights import Linear


class HeadsDrafter(Drafter):
    """Drafts one token with each head; arguments as for `KernelModule.heads_drafter`."""

    def __init__(self, expand: Linear, shrink: Linear, projection: Linear) -> None:
        self.expand, self.shrink, self.projection = expand, shrink, projection
        self.heads = shrink.outputs // projection.inputs
        fits = expand.inputs == projection.inputs and shrink.inputs == expand.outputs
        if not fits or shrink.outputs != self.heads * projection.inputs:
            raise ValueError("the heads do not fit the verifier")
        self.widths = (self.heads,)

    def allocate(self, search: GreedySearch) -> None:
        places, device, width = search.sizes.places, search.device, self.projection.inputs
        super().allocate(search)
        self.search = search
        self.wide, self.states = (
            torch.zeros(places, layer.outputs, dtype=layer.weight.dtype, device=device)
            for layer in (self.expand, self.shrink)
        )
        self.scores = make_scores(places * self.heads, self.projection.outputs, width, 1, device)

    def draft(self, batch: Batch, places: int, width: int) -> None:
        """Draft the proposals of the last verification."""
        proposals = self.scores.token[: places * self.heads].view(places, self.heads)
        draft_given[(places,)](
            batch.arguments, proposals, self.heads, width, STEPS=triton.next_power_of_2(width), num_warps=4,
            **self.launch,
        )  # fmt: skip

    def observe(self, batch: Batch, verified: Verified) -> None:
        """Run the heads on the states from which the last emitted tokens were predicted."""
        runner, dim = self.search.runner, self.projection.inputs
        places = verified.step.rows // verified.step.per_sentence
        step = replace(verified.step, active=batch.active[:places])
        wide, states = self.wide[:places], self.states[:places]
        runner.linear(
            step, Input(verified.hidden), self.expand, wide, activation=Activation.RELU, read_rows=batch.last_row
        )
        of_places = replace(step, rows=places, per_sentence=1)
        runner.linear(
            of_places, Input(wide), self.shrink, states, residual=verified.hidden, residual_rows=batch.last_row
        )
        of_heads = replace(step, rows=places * self.heads, per_sentence=self.heads)
        rows = states.view(-1, dim)
        into = self.scores.of_rows(len(rows))
        kept, draws = self.search.all_scores(into), batch.draws
        score(runner, of_heads, Input(rows), self.projection, into, batch, draws, new_x=rows, all_scores=kept)
        choose_best(runner, of_heads, into, batch, draws, all_scores=kept)
