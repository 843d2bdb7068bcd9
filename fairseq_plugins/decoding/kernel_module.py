"""The interface of a module of kernels: methods describe themselves against it, whichever module runs them.

Two modules offer it: the compiled one for CPUs (native/csrc/python) and Triton's for GPUs (gpu/interface.py). mypy
checks the second one, tests/decoding/test_kernel_module.py both. `csrc/drafter.h` says what a batch and a draft are.
The converters of weights (kernel_weights.py) also call their own module's `linear`, which depends on its formats.
"""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from torch import Tensor

# What a module makes and gives to itself. Modules do not read each other's objects, so that these have no common type.
AnyLinear: TypeAlias = Any
AnyNorm: TypeAlias = Any
AnyTransformer: TypeAlias = Any
AnyPath: TypeAlias = Any
AnyMaskWeights: TypeAlias = Any
AnyDrafter: TypeAlias = Any
AnyAcceptance: TypeAlias = Any
AnySentence: TypeAlias = Any

FoundOutput = tuple[np.ndarray, np.ndarray, list[int]]
"""Tokens [N] (int64) and log-probabilities [N] of an output, and the number of tokens that each iteration emitted."""
FoundHypothesis = tuple[np.ndarray, np.ndarray, float]
"""Tokens [N] (int64), log-probabilities [N] and score of a hypothesis."""
GivenDrafts = Sequence[Sequence[Sequence[int]]]
"""Token ids of the drafts of each sentence."""

FoundEvent = tuple[int, Any, tuple[int, int] | None, tuple[str, bool] | None]
"""What happened to a sentence of a continuous batch: its id, output, iteration, error.

An iteration has its tokens as output, and drafted and accepted tokens. An end has a `FoundOutput`, or in beam search
hypotheses and steps, and no iteration. An error has a message, and whether it is that EOS is forbidden at the maximum
length; it has no output.
"""


class Unsupported(Exception):
    """A module of kernels does not support something; the message is the reason, in a few words."""


class KernelLayer(Protocol):
    """A layer of a Transformer; without `cross_query` it has no cross-attention."""

    heads: int
    normalize_before: bool
    activation: Any
    self_qkv: AnyLinear
    self_out: AnyLinear
    self_norm: AnyNorm
    cross_query: AnyLinear
    cross_key_value: AnyLinear
    cross_out: AnyLinear
    cross_norm: AnyNorm
    fc1: AnyLinear
    fc2: AnyLinear
    final_norm: AnyNorm


class KernelPolicy(Protocol):
    """Chooses whether to draft, how many tokens, and which of them to verify."""

    def learn(self, drafted: Tensor, accepted: Tensor) -> None:
        """Add counts [W, bins], in double precision, of drafts that were verified in full."""


class KernelGenerator(Protocol):
    """Decodes batches with a method. Its memory is reused for each batch."""

    def begin(self, sentences: Sequence[AnySentence], *, pad: int, unk: int, eos: int, first_token: int) -> None:
        """Begin a batch; outputs begin with `first_token`.

        Raises:
            ValueError: for lengths or symbols that are out of range.
        """

    def run(self, iterations: int = ...) -> bool:
        """Decode until all sentences have ended, at most `iterations` (negative: no limit); return whether all have.

        Raises:
            RuntimeError: if scores are NaN.
        """

    def outputs(self) -> list[FoundOutput]:
        """Return the output of each sentence."""

    def last_iteration(self) -> list[tuple[list[int], int, int, bool]]:
        """Return for each sentence the tokens of the last `run`; drafted and accepted tokens of its last iteration;
        whether it has ended."""

    def run_beams(self) -> list[tuple[list[FoundHypothesis], int]]:
        """Decode by beam search; return the hypotheses of each sentence as they ended, and its number of steps.

        Raises:
            KernelModule.EosForbidden: if EOS is forbidden at the maximum length, where a hypothesis must end.
            RuntimeError: if scores are NaN.
        """

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each part, since the generator was made."""

    # Continuous batches: sentences join and leave while it decodes, in threads of its own. Callable from any thread.

    def open(
        self,
        *,
        pad: int,
        unk: int,
        eos: int,
        first_token: int,
        threads: int,
        max_sentences: int,
        max_source: int,
        max_len: int,
    ) -> None:
        """Open a batch, after which the generator decodes nothing else.

        Args:
            pad, unk, eos, first_token: of all sentences, as for `begin`.
            threads: of the CPU.
            max_sentences: decoded at a time; 0 for what is efficient.
            max_source: most tokens of a source.
            max_len: largest `max_len` of a sentence.

        Raises:
            Unsupported: for a search whose sentences cannot join (beam search on a GPU).
            ValueError: for lengths that do not fit the memory.
        """

    def admit(self, id: int, sentence: AnySentence, streams: bool) -> None:
        """Add a sentence, which waits until there is room; `streams`: its iterations are events.

        Raises:
            ValueError: for a sentence that does not fit the batch.
        """

    def cancel(self, id: int) -> None:
        """Drop a sentence; it has no more events, except those already reported."""

    def take(self, seconds: float) -> list[FoundEvent]:
        """Return the next events; wait up to `seconds` for the first one.

        Raises the error of a batch that has failed, such as MemoryError; then `admit` raises it, too.
        """

    def load(self) -> tuple[int, int]:
        """Return the numbers of waiting and of active sentences."""

    def close(self) -> None:
        """Stop decoding; sentences that have not ended are dropped."""


class KernelModule(Protocol):
    """A module of kernels."""

    @property
    def Activation(self) -> Any:
        """The enumeration of activation functions: RELU, GELU, SILU."""

    @property
    def Lookup(self) -> Any:
        """The enumeration of what `CopyDrafter` copies.

        UNIQUE: the source; only a match that occurs once counts (Aggressive Decoding, Algorithm 1).
        NEAREST: given drafts; long matches near the expected position score best.
        """

    @property
    def EosForbidden(self) -> type[ValueError]: ...

    def Sentence(
        self,
        source: Sequence[int],
        *,
        min_len: int,
        max_len: int,
        unk_penalty: float = ...,
        temperature: float = ...,
        beam: int = ...,
        prefix: Sequence[int] = ...,
        drafts: Sequence[Sequence[int]] = ...,
        noise_key: Sequence[int] = ...,
        topk: int = ...,
        topp: float = ...,
        suppressed: Sequence[int] = ...,
        begin_suppressed: Sequence[int] = ...,
        needs_log_probs: bool = ...,
    ) -> AnySentence:
        """Return a sentence to decode, with the limits of `Constraints`.

        Args:
            source: its tokens, without padding.
            beam: hypotheses that a beam search keeps.
            prefix: first tokens of the output, at most `max_len`; the padding leaves a position free.
            drafts: those that users give.
            noise_key: [4], with which tokens are drawn (reference/sampling.py); empty for the best ones.
            needs_log_probs: without, those of a greedy search may be 0.
        """

    # ------------------------------------------------------------------------------------------------ weights

    def Norm(self, weight: Tensor | None = ..., bias: Tensor | None = ..., eps: float = ...) -> AnyNorm:
        """Return a layer normalisation over the last dimension; without weights, none."""

    def Layer(self) -> KernelLayer:
        """Return a layer, whose attributes are to be set."""

    def transformer(
        self,
        layers: Any,
        embedding: Tensor,
        scale: float,
        positions: Tensor | None,
        embedding_norm: AnyNorm,
        final_norm: AnyNorm,
        projection: AnyLinear | None,
        embedding_scales: Tensor | None = None,
    ) -> AnyTransformer:
        """Return an encoder or decoder.

        Args:
            layers: sequence of what `Layer` returned.
            embedding: [V, D], in int8 if there are `embedding_scales`.
            scale: factor of the embeddings.
            positions: [P, D]; None for none.
            embedding_norm, final_norm: of the input, and of the output of pre-norm layers.
            projection: to the vocabulary; None in an encoder.
            embedding_scales: [V].
        """

    def Path(
        self,
        ids: Tensor,
        before: Tensor | None,
        after: AnyLinear | None,
        gru_hidden: AnyLinear | None,
        gru_token: AnyLinear | None,
        gru_recurrent: AnyLinear | None,
        to_rank: AnyLinear | None,
    ) -> AnyPath:
        """Return the layers that choose a draft's tokens from their scores (reference/drafters/path.py)."""

    def MaskWeights(self, vector: Tensor, copy_attention: AnyLinear | None, positions: Tensor | None) -> AnyMaskWeights:
        """Return the mask embedding of a trained drafter: `vector` [D], plus a soft copy of the source, if given."""

    # ----------------------------------------------------------------------------------------------- drafters

    def feature_drafter(
        self,
        model: AnyTransformer,
        path: AnyPath,
        mask: AnyMaskWeights,
        layers: Sequence[int],
        reader: AnyLinear,
        projections: Any,
        width: int,
    ) -> AnyDrafter:
        """Make a drafter that reads states of the verifier (--drafter-context features).

        Args:
            model: its decoder.
            path, mask: its other weights.
            layers: layers of the verifier whose states are read, 0 for the embedding.
            reader: from these states, concatenated, to the context of each layer and an input.
            projections: of the context of each layer, to keys and values; empty if fused into `reader`.
            width: longest draft.
        """

    def token_drafter(
        self,
        model: AnyTransformer,
        encoder: AnyTransformer | None,
        path: AnyPath,
        mask: AnyMaskWeights,
        caches_prefix: bool,
        width: int,
    ) -> AnyDrafter:
        """Make a drafter that reads tokens (GAD, section 3.1).

        Args:
            model: its decoder.
            encoder: its encoder; None if it shares the verifier's.
            path, mask: its other weights.
            caches_prefix: attention of tokens is causal, so that keys and values of the output are kept.
            width: longest draft.

        Raises:
            Unsupported: on a GPU, if attention is not causal.
        """

    def CopyDrafter(self, lookup: Any, max_match: int, width: int = ...) -> AnyDrafter:
        """Make a drafter that copies a text after a match of the end of the output.

        Args:
            lookup: which text and which match, of `Lookup`.
            max_match: longest match in tokens.
            width: longest draft (default: to the end of the text).
        """

    def jacobi_drafter(self, block: int, window_ratio: float, length: int, initial: int) -> AnyDrafter:
        """Make a drafter by fixed-point iteration (Santilli et al. 2023, Algorithms 1 to 3).

        Args:
            block: positions solved in parallel; 0 for `window_ratio` times the longest source.
            window_ratio: see `block`.
            length: of an output from which decoding is greedy; negative for never.
            initial: token that begins each position; negative for the source token there.
        """

    def heads_drafter(self, expand: AnyLinear, shrink: AnyLinear, projection: AnyLinear) -> AnyDrafter:
        """Make a drafter of heads on the verifier (Stern et al. 2018).

        Args:
            expand: their common hidden layer.
            shrink: the output layers of the heads 2, 3, ..., one after the other.
            projection: to the vocabulary.
        """

    def fallback_drafter(self, first: AnyDrafter, second: AnyDrafter) -> AnyDrafter:
        """Make a drafter that drafts with `second` where `first` drafts nothing."""

    # --------------------------------------------------------------------------------------- rules and loop

    def accept_top_beta(self, beta: int, tau: float) -> AnyAcceptance:
        """Accept a token among the best `beta` whose log-probability is at most `tau` below the best (GAD eq. 8-9)."""

    def accept_within_distance(self, epsilon: float, values: Tensor) -> AnyAcceptance:
        """Accept a number at most `epsilon` away from the best one; `values` [V] has NaN for other tokens."""

    def accept_at_least(self, block: int, rule: AnyAcceptance | None) -> AnyAcceptance:
        """Accept the first `block` - 1 tokens of a draft always, and others by a rule (None: exact)."""

    def Policy(self, width: int, always_drafts: bool = ...) -> KernelPolicy:
        """Return a policy for drafts of up to `width` tokens; `always_drafts` is for counting how many survive."""

    def Generator(
        self,
        *,
        encoder: AnyTransformer | None,
        verifier: AnyTransformer,
        drafter: AnyDrafter | None = ...,
        acceptance: AnyAcceptance | None = ...,
        policy: Any = ...,
        head: Any = ...,
        beam: int = ...,
    ) -> KernelGenerator:
        """Make a generator.

        Args:
            encoder: None if sources are encoded elsewhere.
            verifier: a decoder.
            drafter: None to decode one token at a time.
            acceptance: a relaxed rule; None for exact acceptance.
            policy: what `Policy` returned; None to verify each drafted token.
            head: two layers before the projection (head 1 of blockwise decoding); None for none.
            beam: most hypotheses of a sentence; 0 for greedy search.
        """
