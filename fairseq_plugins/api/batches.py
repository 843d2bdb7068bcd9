"""Decode sentences, given as token ids, in batches of similar length, for several threads."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, overload

import torch
from fairseq.token_generation_constraints import pack_constraints
from torch import Tensor

from fairseq_plugins.api.constraints import constraint_ids
from fairseq_plugins.api.drafts import check_drafts, cut_texts
from fairseq_plugins.api.generators import CallSearch, Generators
from fairseq_plugins.api.inputs import check_characters, check_string, warn_of_lines
from fairseq_plugins.api.results import CallStatistics, RecordedStats, Translation, emitted_of
from fairseq_plugins.api.text import TextCoder
from fairseq_plugins.checkpoint.session import TaskSession
from fairseq_plugins.decoding import methods
from fairseq_plugins.decoding.generator import DraftVerifyGenerator
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.forks import usable_in_forks

DraftIds = Sequence[Sequence[Sequence[int]]]
"""Target ids of the drafts of each sentence."""


class BatchDecoder:
    """Decodes with one model. Calls of several threads take turns batch by batch.

    Args:
        session: the model.
        threads: of a CPU that the calls use; None for torch's number.

    Attributes:
        max_source_tokens: maximum source length in tokens, with EOS and without a language token.
    """

    def __init__(self, session: TaskSession, threads: int | None) -> None:
        self._session = session
        self._threads = threads
        self._spec, _ = methods.chosen(session.cfg.task)
        self._text = TextCoder(session)
        self._generators = Generators(session, self._spec)
        self._lock = threading.RLock()
        usable_in_forks(self)
        self._thread = threading.local()
        # Build a generator, so that options that do not fit the model fail here, not at the first sentence.
        self._give_back(self._take(self._generators.search({})))
        # The task may put a language token before each source.
        blank = session.batch(self._dataset([self._text.source([])]), [0])
        self.max_source_tokens: int = session.max_positions[0] + 1 - int(blank["net_input"]["src_lengths"][0])

    @property
    def statistics(self) -> CallStatistics:
        """Counts of this thread's last call; for an iterator that has not ended, counts so far."""
        return getattr(self._thread, "statistics", None) or CallStatistics()

    def _encode(self, text: str, name: str) -> Tensor:
        """Return the ids [S] of a sentence; errors name it."""
        check_string(text, name)
        check_characters(text, name)
        warn_of_lines(text, name)
        return self._source(self._text.tokenize(text), name)

    def _source(self, tokens: Sequence[str], name: str) -> Tensor:
        source = self._text.source(tokens)
        if len(source) > self.max_source_tokens:
            problem = f"has {len(source)} tokens, and the model reads at most {self.max_source_tokens}"
            raise ConfigurationError(name, None, problem, 'split it, or leave it out with on_error="skip"')
        return source

    def _draft_ids(
        self, drafts: Sequence[Sequence[Sequence[str]]] | None, sentences: int
    ) -> list[list[list[int]]] | None:
        """Return the token ids of each sentence's drafts."""
        if drafts is None:
            return None
        check_drafts(drafts, sentences, self._spec.name)
        return [[self._text.target(draft) for draft in of_sentence] for of_sentence in drafts]

    def _constraint_ids(
        self, phrases: Sequence[Sequence[Sequence[str]]] | None, sentences: int
    ) -> list[list[Tensor]] | None:
        """Return the token ids of each sentence's phrases."""
        target = self._session.task.target_dictionary
        return None if phrases is None else constraint_ids(phrases, sentences, target)

    def _cut(self, given: Any, argument: str, is_one: bool) -> list[list[list[str]]] | None:
        """Return target texts, those of one sentence or of several, as subwords."""
        return None if given is None else cut_texts([given] if is_one else given, argument, self._text.tokenize)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the lock, and set torch to the model's number of threads."""
        with self._lock:
            before = torch.get_num_threads()
            if self._threads is not None:
                torch.set_num_threads(self._threads)
            try:
                yield
            finally:
                if self._threads is not None:
                    torch.set_num_threads(before)

    def _take(self, search: CallSearch) -> Any:
        with self._turn():
            generator = self._generators.take(search)
        if isinstance(generator, DraftVerifyGenerator):
            generator.stats = RecordedStats(self._spec.name)
        return generator

    def _give_back(self, generator: Any) -> None:
        with self._lock:
            self._generators.give_back(generator)

    def _dataset(self, sources: Sequence[Tensor]) -> Any:
        dataset = self._session.task.build_dataset_for_inference(sources, [len(source) for source in sources])
        dataset.ordered_indices()  # else fairseq's multilingual_translation has no sentences
        return dataset

    @overload
    def _decode(
        self,
        sources: Sequence[Tensor],
        search: CallSearch,
        drafts: DraftIds | None = ...,
        places: Sequence[int] | None = ...,
        constraints: Sequence[list[Tensor]] | None = ...,
    ) -> list[Translation]: ...
    @overload
    def _decode(
        self,
        sources: Sequence[Tensor | None],
        search: CallSearch,
        drafts: DraftIds | None = ...,
        places: Sequence[int] | None = ...,
        constraints: Sequence[list[Tensor]] | None = ...,
    ) -> list[Translation | None]: ...

    def _decode(
        self,
        sources: Sequence[Tensor | None],
        search: CallSearch,
        drafts: DraftIds | None = None,
        places: Sequence[int] | None = None,
        constraints: Sequence[list[Tensor]] | None = None,
    ) -> Any:
        """Decode sentences in batches of similar length, and add them to the statistics of this thread's call.

        Args:
            sources: ids [S] of each sentence, with EOS; None for one that is left out, also of the result.
            search: options of the call.
            drafts: target ids of each sentence's drafts.
            places: numbers of the sentences, by which samples differ; None for 0, 1, 2 ...
            constraints: target ids of the phrases that the output of each sentence contains.

        Raises:
            ConfigurationError: for a blank sentence with constraints.
        """
        statistics = self._thread.statistics
        given = {number: source for number, source in enumerate(sources) if source is not None}
        # The number of a sentence in the call is its id, also beside one that is left out.
        rows = [self._text.source([]) if source is None else source for source in sources]
        # Given EOS alone, a model hallucinates a sentence.
        blank = [number for number, source in given.items() if len(source) == 1]
        if constraints is not None and any(constraints[number] for number in blank):
            number = next(number for number in blank if constraints[number])
            problem = "the text is blank, so its translation is"
            raise ConfigurationError(f"constraints[{number}]", None, problem, "give None")
        translations = {number: self._blank() for number in blank}
        for translation in translations.values():
            statistics.add(translation)
        order = sorted(given.keys() - set(blank), key=lambda number: (len(given[number]), number))
        generator = self._take(search)
        try:
            for start in range(0, len(order), search.batch_size):
                numbers = order[start : start + search.batch_size]
                with self._turn():
                    sample = self._session.batch(self._dataset(rows), numbers)
                    if places is not None:
                        sample["numbers"] = torch.tensor([places[number] for number in sample["id"].tolist()])
                    if drafts is not None:
                        sample["drafts"] = [drafts[number] for number in sample["id"].tolist()]
                    if constraints is not None:
                        sample["constraints"] = pack_constraints([constraints[n] for n in sample["id"].tolist()])
                    for number, translation in self._decode_batch(generator, sample, search.num_hypotheses, statistics):
                        translations[number] = translation
                        statistics.add(translation)
        finally:
            self._give_back(generator)
        return [translations.get(number) for number in range(len(sources))]

    def _blank(self) -> Translation:
        return Translation("", [], 0.0, [], None if self._spec.build is None else [])

    def _decode_batch(
        self, generator: Any, sample: dict[str, Any], num_hypotheses: int, statistics: CallStatistics
    ) -> Iterator[tuple[int, Translation]]:
        getattr(generator, "backend", None)  # set up before the clock starts
        started = time.perf_counter()
        hypotheses = self._session.decode(generator, sample)
        statistics.seconds += time.perf_counter() - started
        stats = getattr(generator, "stats", None)
        counted = stats.take() if isinstance(stats, RecordedStats) else {}
        for number, of_sentence in zip(sample["id"].tolist(), hypotheses, strict=True):
            yield number, self._translation(of_sentence[:num_hypotheses], emitted_of(counted.get(number, [])))

    def _translation(self, hypotheses: Sequence[dict[str, Any]], emitted: Sequence[list[int]]) -> Translation:
        """Return the translation of a sentence.

        Args:
            hypotheses: of the sentence, the best first.
            emitted: for each of its samples the tokens that each iteration emitted; one without sampling; empty if
                nothing was counted.
        """
        hypothesis, *others = hypotheses
        tokens = hypothesis["tokens"].tolist()
        return Translation(
            text=self._text.join(tokens),
            tokens=self._text.symbols(tokens),
            score=float(hypothesis["score"]),
            token_scores=hypothesis["positional_scores"].tolist(),
            emitted=emitted[hypothesis.get("sample", 0)] if emitted else None,
            alignment=self._alignment(tokens, hypothesis["alignment"]),
            alternatives=[self._translation([other], emitted if len(emitted) > 1 else []) for other in others],
        )

    def _alignment(self, tokens: Sequence[int], pairs: Sequence[tuple[int, int]] | Tensor) -> list[int] | None:
        """Return the source positions of the tokens that are shown, from fairseq's pairs of source and target."""
        if isinstance(pairs, Tensor):
            return None  # nothing was aligned
        eos = self._session.task.target_dictionary.eos()
        shown = [token not in self._session.stripped for token in tokens if token != eos]
        return [source for source, target in pairs if shown[target]]
