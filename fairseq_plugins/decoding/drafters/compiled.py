"""What a drafter has to say of itself so that the kernels draft in its place: see one_call.py."""

import ctypes
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from fairseq_plugins.decoding.engine.native.layers import NativeLinear


class CompiledDrafter(ABC):
    """A drafter that the kernels know, too.

    Attributes:
        kernel_part: which field of `DecodingStructure` its structure is for.
        reads_encoder: whether `start` needs the encoder's output.
        projection: to the vocabulary, where that is not the verifier's own.
    """

    kernel_part: ClassVar[str]
    reads_encoder: ClassVar[bool] = True
    projection: NativeLinear | None = None

    @property
    @abstractmethod
    def is_compiled(self) -> bool:
        """Whether the kernels know this drafter with its settings."""

    @property
    @abstractmethod
    def widest(self) -> int:
        """How many tokens a draft of this batch may have."""

    @abstractmethod
    def structure(self, slots: int, batch: int, verifier_width: int) -> tuple[ctypes.Structure, list[Any]] | None:
        """What the kernels need to draft and observe by themselves; None where they cannot, or do not know how.

        What they change is as if `observe` had been called.

        Args:
            slots: of every sentence that they may need.
            batch: number of sentences, B.
            verifier_width: of the verifier's states.

        Returns:
            the structure, and what must be held as long as it is used.
        """
