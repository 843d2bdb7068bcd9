"""The loop in one call of compiled code, without drafts or with those of a `CompiledDrafter`; what stands is the
verifier's best token, or one of the best.

Everything else goes round the loop of `generator.py`, which is the reference: other drafters and rules, ensembles,
prefixes, temperatures, traces and profiles.
"""

import ctypes
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch

from fairseq_plugins.decoding.drafters.adaptive import AdaptiveDrafter, inner_of
from fairseq_plugins.decoding.drafters.compiled import CompiledDrafter
from fairseq_plugins.decoding.drafters.policy import Counting
from fairseq_plugins.decoding.engine.native.build import (
    DecodingStructure,
    LimitsStructure,
    RelaxedStructure,
    StackStructure,
)
from fairseq_plugins.decoding.engine.native.kernels import sentences_together
from fairseq_plugins.decoding.engine.native.layers import check
from fairseq_plugins.decoding.method import Method
from fairseq_plugins.decoding.methods.greedy import NoDrafter
from fairseq_plugins.decoding.search import GreedySearch
from fairseq_plugins.decoding.search.rules import TopBeta, exact
from fairseq_plugins.decoding.state import DecodingState, Hypothesis
from fairseq_plugins.decoding.verifier import Verifier

# Of every row the tokens that each iteration emitted, and whether its sentence has ended; and in beam search, with the
# places of their sentences, the hypotheses that have ended.
Ran = tuple[list[list[int]], list[bool], list[tuple[int, Hypothesis]]]

# Iterations before Python has its turn again: somebody may have pressed Ctrl-C. Most outputs are shorter, and caches,
# which grow by `cached_decoder.ROOM` slots, have room for as many in any case.
ITERATIONS = 48
# The kernels know no infinity; no two log-probabilities are that far apart.
_LARGE_GAP = 1e38


def verifies_in_one_call(method: Method) -> bool:
    """Whether the kernels know the verifier of a method that may run there whole."""
    verifier = method.verifier
    known = isinstance(verifier, Verifier) and verifier.is_plain and verifier.engine.kernels is not None
    return known and method.in_one_call


def runs_in_one_call(method: Method) -> bool:
    """Whether the kernels know all parts of a method."""
    search = method.search
    return (
        verifies_in_one_call(method)
        and type(search) is GreedySearch
        and (search.rule is exact or (isinstance(search.rule, TopBeta) and search.rule.score_of == "verifier"))
        and isinstance(inner_of(method.drafter), NoDrafter | CompiledDrafter)
    )


class Sentences(NamedTuple):
    """Where the sentences of a call are, as `DecodingStructure` has it: addresses but for the first two."""

    batch: int
    columns: int
    tokens: int
    log_probs: int
    lengths: int


class OneCall:
    """Runs iterations of a method until sentences have ended.

    Args:
        method: one that `runs_in_one_call`.
    """

    def __init__(self, method: Method) -> None:
        assert isinstance(method.verifier, Verifier)
        self.decoder = method.verifier.decoders[0]
        self.adaptive = method.drafter if isinstance(method.drafter, AdaptiveDrafter) else None
        inner = inner_of(method.drafter)
        self.drafter = inner if isinstance(inner, CompiledDrafter) else None
        rule = method.search.rule
        self.relaxed = RelaxedStructure(rule.beta, min(rule.tau, _LARGE_GAP)) if isinstance(rule, TopBeta) else None
        self.kernels = method.verifier.engine.kernels

    def run(self, state: DecodingState, enough: int) -> Ran | None:
        """Decode until so many sentences have ended, or some iterations are over; the state is brought up to date.

        Returns:
            what became of every row; None where this is not for the kernels.
        """
        kernels, batch = self.kernels, len(state.host_lengths)
        assert kernels is not None
        counting, drafter = self.counting(batch)
        # The most that an iteration adds, if all goes well.
        width = 1 + (0 if drafter is None else drafter.widest)
        slots = state.span.longest + width + ITERATIONS
        projection = (None if drafter is None else drafter.projection) or self.decoder.native_output
        verifier = self.decoder.stack(slots, projection)
        if projection is None or verifier is None:
            return None
        limits = kernels.limits(projection.outputs, state.constraints)
        with self.preparing():
            part = None if drafter is None else drafter.structure(slots, batch, verifier[0].dim)
        if limits is None or (drafter is not None and part is None):
            return None
        for name, tensor, kind in (
            ("tokens", state.tokens, torch.long),
            ("log-probabilities", state.log_probs, torch.float32),
            ("lengths", state.lengths, torch.long),
        ):
            check(name, tensor, (batch, *state.tokens.shape[1:]) if tensor.dim() == 2 else (batch,), kind)
        addresses = (state.tokens.data_ptr(), state.log_probs.data_ptr(), state.lengths.data_ptr())
        sentences = Sentences(batch, state.tokens.size(1), *addresses)
        of_rows, finished = self.decode(
            sentences, enough, verifier[0], limits, {} if part is None else {drafter.kernel_part: part[0]}, counting
        )
        state.host_lengths = [length + sum(each) for length, each in zip(state.host_lengths, of_rows, strict=True)]
        return of_rows, finished, []

    def preparing(self) -> AbstractContextManager[None]:
        """For what is done for drafts besides them: who decides whether these pay wants to know what it takes."""
        return nullcontext() if self.adaptive is None else self.adaptive.preparing()

    def counting(self, batch: int) -> tuple[Counting | None, CompiledDrafter | None]:
        """What the kernels are to count in for so many sentences, None for nothing; and who drafts, None for nobody."""
        if self.adaptive is None:
            return None, self.drafter
        return self.adaptive.counting(batch), self.drafter if self.adaptive.drafts else None

    def decode(
        self,
        sentences: Sentences,
        enough: int,
        verifier: StackStructure,
        limits: LimitsStructure,
        drafter: dict[str, ctypes.Structure],
        counting: Counting | None,
    ) -> tuple[list[list[int]], list[bool]]:
        """Call the kernels, for some iterations at most.

        Args:
            sentences: where these are.
            enough: so many have ended.
            verifier, limits, drafter: as `DecodingStructure` has them; the drafter by the name of its field.
            counting: what `counting` returned.

        Returns:
            of every sentence the tokens that each iteration emitted, and whether it has ended.
        """
        kernels, batch = self.kernels, sentences.batch
        assert kernels is not None
        finished = (ctypes.c_uint8 * batch)()
        emitted = (ctypes.c_int32 * (ITERATIONS * batch))()
        least, rows = sentences_together(verifier.dim)
        kernels.functions.set_threads(torch.get_num_threads())
        failed = kernels.functions.decode(
            ctypes.byref(
                DecodingStructure(
                    verifier=verifier,
                    limits=limits,
                    **{name: ctypes.addressof(part) for name, part in drafter.items()},
                    adaptive=None if counting is None else ctypes.addressof(counting.structure),
                    relaxed=None if self.relaxed is None else ctypes.addressof(self.relaxed),
                    **sentences._asdict(),
                    finished=ctypes.addressof(finished),
                    budget=ITERATIONS if counting is None else min(ITERATIONS, counting.budget or ITERATIONS),
                    emitted=ctypes.addressof(emitted),
                    enough=enough,
                    least_together=least,
                    rows_together=rows,
                )
            )
        )
        if failed:
            raise ValueError("kernels: a token is outside of the vocabulary, or a sentence outside of its cache")
        if not any(emitted):
            raise RuntimeError("kernels: no room for an iteration")
        if self.adaptive is not None:
            self.adaptive.counted(batch)
        counts = emitted[:]
        of_rows = [[n for n in counts[row::batch] if n > 0] for row in range(batch)]
        return of_rows, [has_ended == 1 for has_ended in finished]
