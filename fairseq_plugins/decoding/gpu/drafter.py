"""The interface of drafters on a GPU, as csrc/drafter.h is on a CPU. A new drafter is one file."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fairseq_plugins.decoding.kernel_module import GivenDrafts

if TYPE_CHECKING:
    from fairseq_plugins.decoding.gpu.batch import Batch
    from fairseq_plugins.decoding.gpu.search import Encoded, GreedySearch, Verified

# Lengths of drafts that have graphs, where the longest one depends on the batch: with the last token, full tiles of
# rows. Longer drafts are cut to the last of these.
LENGTHS = (15, 31, 63, 127, 255, 511)


def lengths_up_to(width: int) -> tuple[int, ...]:
    """Return the lengths of drafts that have graphs, for a longest one of `width` tokens."""
    return *(length for length in LENGTHS if length < width), min(width, LENGTHS[-1])


class Drafter:
    """Drafts tokens for every place of a batch. Its methods launch kernels and never wait for them."""

    widths: tuple[int, ...]  # lengths of drafts that have graphs, the longest last
    layers_read: tuple[int, ...] = ()  # layers of the verifier whose states it reads, 0 for the embedding
    launch: dict[str, Any]  # constants and options of each launch

    @property
    def width(self) -> int:
        """The longest draft of all batches."""
        return self.widths[-1]

    def allocate(self, search: "GreedySearch") -> None:
        """Take memory for the places of a search, and its options of launches. Called once; overrides call super."""
        self.launch = search.runner.launch

    def begin_batch(self, sources: Sequence[Sequence[int]], max_len: int, drafts: GivenDrafts) -> int:
        """Begin a batch, on the host; return the longest draft that its sentences may have.

        drafts: those that the user gives for each sentence; empty for none.
        """
        return self.width

    def take_places(self, batch: "Batch", taken: Sequence[tuple[int, int]]) -> None:
        """Give places to sentences of the batch, [(place, sentence)]. Their encoding is launched next."""

    def begin(self, batch: "Batch", encoded: "Encoded") -> None:
        """Begin sentences whose sources have just been encoded."""

    def draft(self, batch: "Batch", places: int, width: int) -> None:
        """Write up to `width` tokens to `batch.draft` and their numbers to `batch.num_drafted`, where `batch.active`.

        A draft ends at EOS or where the output must end.
        """
        raise NotImplementedError

    def observe(self, batch: "Batch", verified: "Verified") -> None:
        """Read the result of an iteration: `batch.emitted` tokens, states of the verified rows."""
