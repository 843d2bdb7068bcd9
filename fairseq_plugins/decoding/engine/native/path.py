"""The choice of a draft's tokens from left to right, as the kernels want it: see models/transition.py."""

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

from fairseq_plugins.decoding.engine.native.build import PathStructure
from fairseq_plugins.decoding.engine.native.layers import NativeLinear, check
from fairseq_plugins.decoding.engine.weights import Linear, Precision
from fairseq_plugins.models.transition import TransitionScores


class NativePath:
    """`TransitionScores.choose` on the kernels; without transition scores every token is chosen by itself.

    Args:
        kernels: the compiled library.
        transition: the scores, with their weights of now; None for none.
        ids: [N] of the tokens that have scores.
        linear: makes the linear layers.
        precision: of the layer that scores all tokens.

    Raises:
        ValueError: for tensors that do not fit each other.
    """

    def __init__(
        self,
        kernels: ctypes.CDLL,
        transition: TransitionScores | None,
        ids: Tensor,
        linear: Callable[[Linear, Precision], NativeLinear],
        precision: Precision = Precision.FP32,
    ) -> None:
        self.kernels = kernels
        self.ids = ids.contiguous()
        self.size, self.width = len(ids), 0
        check("ids", self.ids, (self.size,), torch.long)
        self.structure = PathStructure(ids=self.ids.data_ptr(), size=self.size)
        if transition is None:
            return
        before, after = transition.before.weight.detach().contiguous(), transition.after.weight.detach()
        vocabulary, rank = before.shape
        check("scores of tokens before", before, (vocabulary, rank))
        check("scores of tokens", after, (vocabulary, rank))
        if self.size == 0 or not bool(((ids >= 0) & (ids < vocabulary)).all()):
            raise ValueError(f"kernels: transitions among {vocabulary} tokens, and ids of others")
        layers = {"after": (after[ids], None)}
        if transition.cell is not None:
            cell, state = transition.cell, transition.cell.hidden_size
            self.width = cell.input_size - rank
            layers["of_hidden"] = (cell.weight_ih_l0[:, : self.width], cell.bias_ih_l0)
            layers["of_before"] = (cell.weight_ih_l0[:, self.width :], None)
            layers["of_state"] = (cell.weight_hh_l0, cell.bias_hh_l0)
            layers["to_rank"] = (transition.of_state.weight, None)
            shapes = [(3 * state, self.width), (3 * state, rank), (3 * state, state), (rank, state)]
            fit = [layer[0].shape == shape for layer, shape in zip(list(layers.values())[1:], shapes, strict=True)]
            if not all(fit):
                raise ValueError(f"kernels: the layers of a state {state} wide do not fit it")
        # The structure holds addresses only.
        precisions = {"after": precision}
        compiled = {name: linear(layer, precisions.get(name, Precision.FP32)) for name, layer in layers.items()}
        self.held = (before, compiled)
        self.structure.before, self.structure.vocabulary = before.data_ptr(), vocabulary
        for name, layer in self.held[1].items():
            setattr(self.structure, name, layer.structure)

    @property
    def linears(self) -> list[NativeLinear]:
        """What is multiplied for every token of a path."""
        return [linear for name, linear in self.held[1].items() if name != "of_hidden"] if self.structure.before else []

    def __call__(
        self, scores: Tensor, hidden: Tensor, first: Tensor, with_log_probs: bool
    ) -> tuple[Tensor, Tensor | None]:
        """As `TransitionScores.choose`.

        Raises:
            ValueError: for tensors of the wrong shape or type, and for tokens outside of the vocabulary.
        """
        scores = scores.clone(memory_format=torch.contiguous_format)
        hidden, first = hidden.contiguous(), first.contiguous()
        batch, width = scores.shape[:2]
        check("scores of paths", scores, (batch, width, self.size))
        check("hidden states of paths", hidden, (batch, width, self.width or hidden.size(-1)))
        check("tokens before paths", first, (batch,), torch.long)
        chosen = first.new_empty(batch, width)
        log_probs = scores.new_empty(batch, width) if with_log_probs else None
        self.kernels.set_threads(torch.get_num_threads())
        failed = self.kernels.choose_paths(
            *(scores.data_ptr(), hidden.data_ptr(), batch, width, ctypes.byref(self.structure), first.data_ptr()),
            *(chosen.data_ptr(), None if log_probs is None else log_probs.data_ptr()),
        )
        if failed:
            raise ValueError("kernels: the token before a path is outside of the vocabulary")
        return chosen, log_probs
