"""One sentence from its source to its output by the kernels, on memory that stays from sentence to sentence.

The calls are those that a batch makes: see encoder.py, cached_decoder.py and one_call.py, which know every case. What
Python and PyTorch do around the calls there takes a fifth of the time of a short sentence in a small model.
"""

import ctypes
from typing import Any

import torch

from fairseq_plugins.decoding.constraints import Constraints
from fairseq_plugins.decoding.drafters.compiled import CompiledDrafter
from fairseq_plugins.decoding.drafters.features import FeatureDrafter
from fairseq_plugins.decoding.engine.cached_decoder import CachedDecoder
from fairseq_plugins.decoding.engine.encoder import FusedEncoder
from fairseq_plugins.decoding.engine.native.build import DrafterStructure, MemoryStructure
from fairseq_plugins.decoding.engine.native.layers import NativeLayers, NativeLinear
from fairseq_plugins.decoding.engine.native.source import NativeLinears, SourceCopy, encode_at
from fairseq_plugins.decoding.method import Method
from fairseq_plugins.decoding.one_call import ITERATIONS, OneCall, Sentences
from fairseq_plugins.decoding.state import Hypothesis
from fairseq_plugins.decoding.verifier import Verifier

# Slots and positions are made room for so many at a time.
_TOGETHER = 32


class Buffer:
    """Memory for numbers that grows; what it held is lost then, and there are zeros."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.numbers = torch.zeros(0, dtype=dtype)

    def of(self, size: int) -> int:
        """The address of so many numbers."""
        if self.numbers.numel() < size:
            self.numbers = torch.zeros(size, dtype=self.numbers.dtype)
        return self.numbers.data_ptr()


class OneDecoder:
    """A decoder with memory for one sentence.

    Args:
        layers: its own.
        cross: what makes keys and values of the source.
        projection: to the vocabulary.
    """

    def __init__(self, layers: NativeLayers, cross: NativeLinears, projection: NativeLinear) -> None:
        self.layers, self.cross, self.projection = layers, cross, projection
        self.own, self.source = MemoryStructure(sentences=1), MemoryStructure(sentences=1)
        self.own_buffer, self.source_buffer = Buffer(), Buffer()
        self.structure = self.layers.stack_on(projection, self.own, self.source)

    def start(self, encoded: int, width: int, slots: int) -> None:
        """Begin a sentence of so many slots at most, with a source at this address [width, D]."""
        slot = 2 * self.layers.width
        self.source.key_value = self.source_buffer.of(self.layers.count * width * slot)
        self.source.layer, self.source.capacity, self.source.used = width * slot, width, width
        self.cross.run_at(encoded, width, self.source.key_value)
        if slots > self.own.capacity:
            slots += -slots % _TOGETHER
            self.own.key_value = self.own_buffer.of(self.layers.count * slots * slot)
            self.own.layer, self.own.capacity, self.own.used = slots * slot, slots, slots


class StateReader:
    """A drafter that reads the verifier's states, with memory for one sentence.

    Args:
        drafter: one that `is_compiled`.
        decoder: its own.
        copy: what its masks are fed.
        verifier_width: of the verifier's states.
    """

    def __init__(self, drafter: FeatureDrafter, decoder: OneDecoder, copy: SourceCopy, verifier_width: int) -> None:
        self.drafter, self.decoder, self.copy = drafter, decoder, copy
        self.newest = torch.zeros(decoder.layers.width)
        self.fed_buffer = Buffer()
        self.structure, self.held = drafter.structure_on(decoder.structure, verifier_width)
        self.structure.newest = self.newest.data_ptr()

    @property
    def most(self) -> int:
        """How many tokens a draft of this sentence may have."""
        return self.drafter.block_size

    def start(self, sample: dict[str, Any], encoded: int, max_len: int) -> None:
        """Begin a sentence of so many tokens at most; the address of its source [S, D]."""
        self.decoder.start(encoded, sample["net_input"]["src_tokens"].size(1), max_len + 2 + self.most)
        ctypes.memset(self.structure.newest, 0, self.newest.nbytes)
        self.structure.fed.fed_positions = 0

    def go_on(self, embedding: int, padding: int, width: int, positions: int) -> DrafterStructure:
        """Its structure for a call that needs so many positions; addresses of embeddings [width, D] and padding."""
        fed, dim = self.structure.fed, self.decoder.layers.width
        if fed.fed_positions < positions:
            # The more the longer the sentence is, so that it is not often done anew.
            count = max(positions + -positions % _TOGETHER, 2 * fed.fed_positions)
            self.copy.know(max(count, width))
            fed.fed = self.fed_buffer.of(count * dim)
            self.copy.run_at(embedding, padding, 1, width, count, fed.fed)
            fed.sentence, fed.position, fed.fed_sentences, fed.fed_positions = count * dim, dim, 1, count
        self.structure.width = self.drafter.width
        return self.structure


class TokenReader:
    """A drafter that reads nothing but tokens: it starts as for a batch.

    Args:
        drafter: one that `is_compiled`.
        verifier_width: of the verifier's states.
    """

    def __init__(self, drafter: CompiledDrafter, verifier_width: int) -> None:
        self.drafter, self.verifier_width = drafter, verifier_width
        self.held: list[Any] = []

    @property
    def most(self) -> int:
        """As `StateReader.most`."""
        return self.drafter.widest

    def start(self, sample: dict[str, Any], encoded: int, max_len: int) -> None:
        """As `StateReader.start`."""
        self.drafter.start(sample, None)

    def go_on(self, embedding: int, padding: int, width: int, positions: int) -> ctypes.Structure:
        """As `StateReader.go_on`."""
        made = self.drafter.structure(positions, 1, self.verifier_width)
        assert made is not None
        structure, self.held = made
        return structure


class OneSentence:
    """Decodes batches of one sentence.

    Args:
        call: of their method.
        encoder: the verifier's, of which the kernels know everything.
        verifier: its decoder.
        drafter: who drafts, None for nobody.
    """

    def __init__(
        self, call: OneCall, encoder: FusedEncoder, verifier: OneDecoder, drafter: StateReader | TokenReader | None
    ) -> None:
        self.call, self.encoder, self.verifier, self.drafter = call, encoder, verifier, drafter
        self.embedding, self.encoded, self.padding = Buffer(), Buffer(), Buffer(torch.bool)
        self.tokens, self.log_probs, self.length = Buffer(torch.long), Buffer(), ctypes.c_int64()

    @classmethod
    def of(cls, method: Method, call: OneCall) -> "OneSentence | None":
        """For a method that `runs_in_one_call`; None where something of it is not for the kernels at every size."""
        assert isinstance(method.verifier, Verifier)
        encoder, drafter = method.verifier.encoders[0], call.drafter
        verifier = _decoder(method.verifier.decoders[0], None if drafter is None else drafter.projection)
        if verifier is None or encoder.native_layers is None or verifier.cross.inputs != encoder.native_layers.width:
            return None
        if drafter is None:
            return cls(call, encoder, verifier, None)
        if not drafter.is_compiled:
            return None
        if not drafter.reads_encoder:
            return cls(call, encoder, verifier, TokenReader(drafter, verifier.layers.width))
        if type(drafter) is not FeatureDrafter:
            return None
        its_decoder, copy = _decoder(drafter.decoder.cached), drafter.decoder.inputs.copy
        if its_decoder is None or copy is None or len(copy.always) != encoder.native_layers.width:
            return None
        return cls(call, encoder, verifier, StateReader(drafter, its_decoder, copy, verifier.layers.width))

    def run(
        self, sample: dict[str, Any], constraints: Constraints, first_token: int
    ) -> tuple[Hypothesis, list[int]] | None:
        """Decode the sentence of a batch.

        Args:
            sample: the batch.
            constraints: of the batch.
            first_token: what the output begins with.

        Returns:
            the output, and the tokens that each iteration emitted; None where this is not for the kernels.
        """
        call, kernels, source = self.call, self.call.kernels, sample["net_input"]["src_tokens"]
        assert kernels is not None and self.encoder.native_layers is not None
        limits = kernels.limits(self.verifier.projection.outputs, constraints)
        if limits is None or not self.encoder.is_for_kernels(source):
            return None
        source, width, dim = source.contiguous(), source.size(1), self.encoder.native_layers.width
        embedding, encoded = self.embedding.of(width * dim), self.encoded.of(width * dim)
        padding = self.padding.of(width)
        encode_at(self.encoder.native_layers, source, constraints.pad, embedding, encoded, padding)
        if b"\1" in ctypes.string_at(padding, width):
            return None
        if self.drafter is not None and (call.adaptive is None or call.adaptive.begin(1, width)):
            with call.preparing():
                self.drafter.start(sample, encoded, constraints.max_len)
        # As many tokens as there may be, EOS and a draft after it.
        slots = constraints.max_len + 2 + (0 if self.drafter is None else self.drafter.most)
        self.verifier.start(encoded, width, slots)
        columns = constraints.max_len + 3
        addresses = (self.tokens.of(columns), self.log_probs.of(columns), ctypes.addressof(self.length))
        sentences = Sentences(1, columns, *addresses)
        ctypes.c_int64.from_address(sentences.tokens).value = first_token
        self.length.value = 0
        iterations: list[int] = []
        has_ended = False
        while not has_ended:
            counting, drafts = call.counting(1)
            drafter: dict[str, ctypes.Structure] = {}
            if drafts is not None:
                assert self.drafter is not None
                with call.preparing():
                    positions = min(sum(iterations) + drafts.widest + 1 + ITERATIONS, slots)
                    drafter = {drafts.kernel_part: self.drafter.go_on(embedding, padding, width, positions)}
            [more], [has_ended] = call.decode(sentences, 1, self.verifier.structure, limits, drafter, counting)
            iterations += more
        columns = slice(1, sum(iterations) + 1)
        log_probs = self.log_probs.numbers[columns]
        return Hypothesis(self.tokens.numbers[columns], log_probs, log_probs.sum()), iterations


def _decoder(decoder: CachedDecoder, projection: NativeLinear | None = None) -> OneDecoder | None:
    """A decoder for one sentence; None where the kernels do not run all of it at every size.

    Args:
        decoder: it.
        projection: to the vocabulary, None for its own.
    """
    cross, projection = decoder.write_cross, projection or decoder.native_output
    if decoder.native_layers is None or projection is None or not isinstance(cross, NativeLinears):
        return None
    return OneDecoder(decoder.native_layers, cross, projection)
