"""Random models and batches for property tests."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fairseq.models.transformer import TransformerModel
from hypothesis import strategies as st

from fairseq_plugins.decoding.recording.stats import SentenceStats
from fairseq_plugins.models.block_nat import BlockNat
from fairseq_plugins.tasks.spec_dec import SpecDecTask
from tests.strategies import SEARCHES, SOURCES, TRANSFORMERS, fitting
from tests.support import Options, decode, fairseq_greedy, make_drafter, make_sample, make_task, make_transformer


@dataclass(frozen=True)
class Case:
    """A random verifier, a batch for it, and maybe a drafter.

    Attributes:
        options: options of the verifier.
        drafter_options: options of the drafter; None for none.
        sources: source lengths of the batch.
        search: generation options.
        vocabulary: size of the dictionary.
        seed: random seed of weights and sources.
    """

    options: dict[str, Any]
    drafter_options: dict[str, Any] | None
    sources: list[int]
    search: dict[str, Any]
    vocabulary: int
    seed: int

    @cached_property
    def task(self) -> SpecDecTask:
        return make_task(self.vocabulary)

    @cached_property
    def verifier(self) -> TransformerModel:
        return make_transformer(self.task, self.seed, **self.options)

    @cached_property
    def drafter(self) -> BlockNat | None:
        if self.drafter_options is None:
            return None
        options = fitting(self.drafter_options, self.options)
        return make_drafter(self.task, self.seed + 1, verifier=self.verifier, **options)

    @cached_property
    def sample(self) -> dict[str, Any]:
        return make_sample(self.task, self.sources, self.seed)

    @cached_property
    def _fairseqs(self) -> dict[str, list]:
        return {}

    def fairseq(self, **search: Any) -> list:
        """Decode with fairseq's own generator at beam 1, once for the same options."""
        options = {**self.search, **search}
        key = str(sorted(options.items()))
        if key not in self._fairseqs:
            self._fairseqs[key] = fairseq_greedy([self.verifier], self.task, self.sample, **options)
        return self._fairseqs[key]

    def decode(self, how: Options, **more: Any) -> tuple[list, list[SentenceStats]]:
        """Decode with our generator; return hypotheses and statistics. Other arguments as for `support.decode`."""
        return decode([self.verifier], self.task, self.sample, how, self.drafter, **{**self.search, **more})


def cases(
    vocabulary: int | list[int],
    drafters: st.SearchStrategy[dict[str, Any]] | None = None,
    transformers: st.SearchStrategy[dict[str, Any]] = TRANSFORMERS,
    sources: st.SearchStrategy[list[int]] = SOURCES,
    searches: st.SearchStrategy[dict[str, Any]] = SEARCHES,
) -> st.SearchStrategy[Case]:
    """Return a strategy of random cases with one of these vocabularies, by default without drafter."""
    return st.builds(
        Case,
        transformers,
        st.none() if drafters is None else drafters,
        sources,
        searches,
        st.just(vocabulary) if isinstance(vocabulary, int) else st.sampled_from(vocabulary),
        st.integers(0, 1000),
    )
