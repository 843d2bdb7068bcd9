"""What is done once for the sources of a batch, as the kernels want it."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from fairseq_plugins.decoding.engine.native.build import LinearStructure
from fairseq_plugins.decoding.engine.native.layers import NativeLayers, NativeLinear, check, require
from fairseq_plugins.models.block_nat import BlockNatDecoder
from fairseq_plugins.models.positions import position_table


def encode(layers: NativeLayers, tokens: Tensor, pad: int) -> tuple[Tensor, Tensor, Tensor]:
    """Encode sources [B, S], with a row for every token and none for padding.

    Args:
        layers: of the encoder, with what stands before and after them.
        tokens: [B, S].
        pad: the token that is padding.

    Returns:
        embeddings [B, S, D]; encoded sources [B, S, D], zeros where there is padding; and where that is [B, S].

    Raises:
        ValueError: for tokens outside of the vocabulary, or tensors that the kernels cannot read.
    """
    require(layers.ends is not None and not layers.has_cross, "these are not the layers of an encoder")
    tokens = tokens.contiguous()
    check("tokens", tokens, tokens.shape, torch.long)
    batch, width = tokens.shape
    embedding, encoded = torch.empty(2, batch, width, layers.width).unbind()
    padding = torch.empty(batch, width, dtype=torch.bool)
    encode_at(layers, tokens, pad, embedding.data_ptr(), encoded.data_ptr(), padding.data_ptr())
    return embedding, encoded, padding


def encode_at(layers: NativeLayers, tokens: Tensor, pad: int, embedding: int, encoded: int, padding: int) -> None:
    """`encode` of contiguous tokens, with the results at these addresses."""
    batch, width = tokens.shape
    layers.kernels.set_threads(torch.get_num_threads())
    failed = layers.kernels.encode(
        *(layers.array, layers.count, ctypes.byref(layers.ends), layers.width, tokens.data_ptr(), batch, width, pad),
        *(embedding, encoded, padding),
    )
    require(not failed, "a token is outside of the vocabulary")


class NativeLinears:
    """Linear layers of the same size that read the same rows, in one call.

    Args:
        linears: the layers.

    Raises:
        ValueError: for layers of different sizes.
    """

    def __init__(self, linears: Sequence[NativeLinear]) -> None:
        self.linears = linears
        self.inputs, self.outputs = linears[0].inputs, linears[0].outputs
        is_same = all((linear.inputs, linear.outputs) == (self.inputs, self.outputs) for linear in linears)
        require(is_same, "layers of different sizes in one call")
        self.array = (LinearStructure * len(linears))(*[linear.structure for linear in linears])

    def __call__(self, x: Tensor, to: Tensor) -> None:
        """Apply all to x [R, ..., inputs] and write the results to a contiguous tensor [layers, R, ...]."""
        x = x.contiguous()
        rows = x.numel() // self.inputs
        check("input of linear layers", x, (*x.shape[:-1], self.inputs))
        check("output of linear layers", to, (len(self.linears), *to.shape[1:]))
        fits = to.numel() == len(to) * rows * self.outputs
        require(fits, lambda: f"{rows} rows of {self.outputs} outputs go to {list(to.shape)}")
        self.run_at(x.data_ptr(), rows, to.data_ptr())

    def run_at(self, x: int, rows: int, to: int) -> None:
        """The same of so many rows at an address, to another one."""
        kernels = self.linears[0].kernels
        kernels.set_threads(torch.get_num_threads())
        kernels.run_linears(self.array, len(self.linears), x, rows, to)


class SourceCopy:
    """What masks are fed that copy the source: `BlockNatDecoder.mask_vectors` of the first positions of all sentences.

    Args:
        kernels: the compiled library.
        decoder: the drafter's, with its weights of now.
    """

    def __init__(self, kernels: ctypes.CDLL, decoder: BlockNatDecoder) -> None:
        self.kernels = kernels
        self.decoder = decoder
        self.always = decoder.mask_vector.detach().contiguous()
        # Of the positions, as many as were asked for so far.
        self.table = self.queries = self.always.new_empty(0, len(self.always))

    def __call__(self, count: int, source: Tensor, padding: Tensor) -> Tensor:
        """Of positions 0 .. count - 1, [B, count, D].

        Args:
            count: of positions.
            source: [B, S, D], embeddings.
            padding: [B, S], where there is nothing.

        Raises:
            ValueError: for tensors that the kernels cannot read.
        """
        batch, width, dim = source.shape
        self.know(max(count, width))
        source, padding = source.contiguous(), padding.contiguous()
        check("source", source, (batch, width, dim))
        check("padding", padding, (batch, width), torch.bool)
        require(dim == len(self.always), lambda: f"masks {len(self.always)} wide copy embeddings that are {dim} wide")
        fed = torch.empty(batch, count, dim)
        self.run_at(source.data_ptr(), padding.data_ptr(), batch, width, count, fed.data_ptr())
        return fed

    def know(self, positions: int) -> None:
        """Have queries and embeddings of so many positions."""
        if len(self.queries) < positions:
            self._grow(positions)

    def run_at(self, source: int, padding: int, batch: int, width: int, count: int, fed: int) -> None:
        """A call with addresses of source, padding and result; so many positions are known."""
        self.kernels.set_threads(torch.get_num_threads())
        self.kernels.copy_source(
            *(self.queries.data_ptr(), count, source, padding, self.table.data_ptr()),
            *(self.always.data_ptr(), batch, width, len(self.always), fed),
        )

    @torch.inference_mode()
    def _grow(self, positions: int) -> None:
        table = position_table(self.decoder, positions)
        # A learned table ends somewhere.
        self.table = table[torch.arange(positions).clamp(max=len(table) - 1)]
        self.queries = self.decoder.copy_attention(self.table)
        for name, tensor in (("positions", self.table), ("queries", self.queries)):
            check(name, tensor, (positions, len(self.always)))
