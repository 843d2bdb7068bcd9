"""Decode sentences, given as token ids, in batches of similar length, for several threads."""

import math
import os
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from fairseq.token_generation_constraints import pack_constraints
from torch import Tensor

from fairseq_plugins.api.generators import CallSearch, Generators
from fairseq_plugins.api.inputs import check_characters, check_string, warn_of_lines
from fairseq_plugins.api.results import CallStatistics, Step, Translation
from fairseq_plugins.api.sentences import Input, Subwords, cut_texts, inputs_of
from fairseq_plugins.checkpoint.session import TaskSession
from fairseq_plugins.data.sentences import is_blank
from fairseq_plugins.decoding import methods
from fairseq_plugins.decoding.decoded import StepOutput
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.fairseq_errors import wrong_option
from fairseq_plugins.shared.forks import ForkSafeLock


class BatchDecoder:
    """Decodes with one model. Calls of several threads take turns batch by batch.

    Args:
        session: the model.
        threads: of a CPU that the calls use; None for torch's number.
        shares: another decoder of the same model in memory.

    Attributes:
        max_source_tokens: maximum source length in tokens, with EOS and without a language token.
    """

    def __init__(self, session: TaskSession, threads: int | None, shares: "BatchDecoder | None" = None) -> None:
        self._session = session
        self._threads = threads
        self._spec, _ = methods.chosen(session.cfg.task)
        self._generators = Generators(session, self._spec)
        self._process = os.getpid()
        self._lock = ForkSafeLock()
        # Held by whoever builds a generator, which may move the weights that decoders share, and by whoever computes
        # with them in PyTorch while another decoder may be built.
        self._weights: ForkSafeLock = ForkSafeLock() if shares is None else shares._weights
        self._thread = threading.local()
        # Build a generator, so that options that do not fit the model fail here, not at the first sentence.
        self._give_back(self._take(self._generators.any_search()))
        # The task may put a language before each source, after its EOS or in the place of that, and padding.
        blank = self._sample([Input(self._ids([]))])
        dictionary = session.task.source_dictionary
        read = [token for token in blank["net_input"]["src_tokens"][0].tolist() if token != dictionary.pad()]
        self.max_source_tokens: int = session.max_positions[0] + 1 - len(read)
        before = read.index(dictionary.eos()) if dictionary.eos() in read else 0
        self._generators.added = before, len(read) - before

    @property
    def statistics(self) -> CallStatistics:
        """Counts of this thread's last call; for an iterator that has not ended, counts so far."""
        return getattr(self._thread, "statistics", None) or CallStatistics()

    def _tokenize(self, text: str, of_target: bool = False) -> list[str]:
        """Cut raw text into subwords of the source or the target; none if it shows nothing."""
        if is_blank(text):
            return []
        session = self._session
        tokenizer, subwords = (session.target_tokenizer, session.target_bpe) if of_target else session.text_tools
        line = text.strip()
        line = tokenizer.encode(line) if tokenizer is not None else line
        line = subwords.encode(line) if subwords is not None else line
        return str(line).split()

    def _ids(self, tokens: Sequence[str]) -> Tensor:
        """Return the ids [S] of source subwords, followed by EOS."""
        dictionary = self._session.task.source_dictionary
        return torch.tensor([*map(dictionary.index, tokens), dictionary.eos()])

    def _symbols(self, ids: Sequence[int]) -> list[str]:
        """Return the target subwords of these ids, without EOS and language tokens."""
        dictionary = self._session.task.target_dictionary
        return [dictionary[index] for index in ids if index not in self._session.stripped]

    def _encode(self, text: str, name: str) -> Tensor:
        """Return the ids [S] of a sentence; errors name it."""
        check_string(text, name)
        check_characters(text, name)
        warn_of_lines(text, name)
        return self._source(self._tokenize(text), name)

    def _source(self, tokens: Sequence[str], name: str) -> Tensor:
        source = self._ids(tokens)
        if len(source) > self.max_source_tokens:
            problem = f"has {len(source)} tokens, and the model reads at most {self.max_source_tokens}"
            raise ConfigurationError(name, None, problem, "split it")
        return source

    def _inputs(
        self,
        sources: Sequence[Tensor | None],
        drafts: Subwords | None = None,
        constraints: Subwords | None = None,
        numbers: Sequence[int] | None = None,
    ) -> list[Input]:
        """Return the sentences of a call: see `inputs_of`; raise ConfigurationError if the decoder takes no drafts."""
        if drafts is not None and self._spec.name != "reuse":
            problem = f"are not for decoder {self._spec.name}"
            raise ConfigurationError("--drafts", None, problem, "load with {--decoder reuse}")
        return inputs_of(sources, drafts, constraints, numbers, self._session.task.target_dictionary)

    def _cut(self, given: Any, argument: str, is_one: bool) -> list[list[list[str]]] | None:
        """Return target texts, those of one sentence or of several, as subwords."""
        cut = partial(self._tokenize, of_target=True)
        return None if given is None else cut_texts([given] if is_one else given, argument, cut)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the lock, and set torch to the model's number of threads."""
        with self._lock, self._own_threads():
            yield

    @contextmanager
    def _own_threads(self) -> Iterator[None]:
        """Set torch to the model's number of threads; its threads have numbers of their own.

        A forked child has one, as torch's data workers: it would wait for OpenMP's others, which are gone.
        """
        before = torch.get_num_threads()
        threads = self._threads if os.getpid() == self._process else 1
        if threads is not None:
            torch.set_num_threads(threads)
        try:
            yield
        finally:
            if threads is not None:
                torch.set_num_threads(before)

    def _take(self, search: CallSearch) -> Any:
        with self._turn(), self._weights:
            return self._generators.take(search)

    def _set_up(self, generator: Any) -> None:
        """Choose the backend of a generator in this turn, before the clock starts; fairseq's own has none."""
        with self._weights:
            getattr(generator, "backend", None)

    def _give_back(self, generator: Any) -> None:
        with self._lock:
            self._generators.give_back(generator)

    def _decode(
        self, inputs: Sequence[Input], search: CallSearch, statistics: CallStatistics | None = None
    ) -> list[Translation]:
        """Decode the sentences of a call in batches of similar length.

        They are added to the `statistics` of this thread's call, or to new ones.
        """
        statistics = self._thread.statistics = CallStatistics() if statistics is None else statistics
        translations = {place: self._blank() for place, one in enumerate(inputs) if one.is_blank}
        for translation in translations.values():
            statistics.add(translation)
        order = sorted(
            set(range(len(inputs))) - translations.keys(), key=lambda place: (len(inputs[place].source), place)
        )
        generator = self._take(search)
        try:
            for start in range(0, len(order), search.batch_size):
                places = order[start : start + search.batch_size]
                with self._turn():
                    for number, translation in self._decode_batch(
                        generator, [inputs[place] for place in places], search
                    ):
                        translations[places[number]] = translation
                        statistics.add(translation)
        finally:
            self._give_back(generator)
        return [translations[place] for place in range(len(inputs))]

    def _blank(self) -> Translation:
        return Translation("", [], 0.0, [], None if self._spec.build is None else [])

    def _sample(self, inputs: Sequence[Input]) -> dict[str, Any]:
        """Return the fairseq batch of sentences; their ids are their places."""
        sources = [one.source for one in inputs]
        dataset = self._session.task.build_dataset_for_inference(sources, [len(source) for source in sources])
        dataset.ordered_indices()  # else fairseq's multilingual_translation has no sentences
        sample = self._session.batch(dataset, range(len(inputs)))
        rows = [inputs[place] for place in sample["id"].tolist()]
        sample["numbers"] = torch.tensor([one.number for one in rows])
        if any(one.drafts is not None for one in rows):
            sample["drafts"] = [one.drafts or [] for one in rows]
        if any(one.constraints is not None for one in rows):
            phrases = [[torch.tensor(phrase) for phrase in one.constraints or []] for one in rows]
            sample["constraints"] = pack_constraints(phrases)
        return sample

    def _decode_batch(
        self, generator: Any, inputs: Sequence[Input], search: CallSearch
    ) -> Iterator[tuple[int, Translation]]:
        sample = self._sample(inputs)
        self._set_up(generator)
        started = time.perf_counter()
        try:
            hypotheses = self._session.decode(generator, sample)
        except (AssertionError, RuntimeError) as error:  # of fairseq's own search
            wrong = wrong_option(error, {**search.options, **search.drawing})
            if wrong is None:
                raise
            raise wrong from error
        self.statistics.seconds += time.perf_counter() - started
        for place, of_sentence in zip(sample["id"].tolist(), hypotheses, strict=True):
            yield place, self._translation(of_sentence[: search.num_hypotheses], search.needs_scores)

    def _stream(self, source: Input, search: CallSearch) -> Generator[Step, None, Translation]:
        """Decode a sentence; yield each iteration, and return the translation."""
        generator = self._take(search)
        with self._turn():
            self._set_up(generator)
        statistics, sample = CallStatistics(), self._sample([source])
        self._thread.statistics = statistics
        iterations = generator.steps(sample, **self._session.arguments(sample))
        output: list[int] = []
        try:
            while True:
                with self._turn():
                    started = time.perf_counter()
                    try:
                        step = self._step(next(iterations)[0], output)
                    except StopIteration as end:
                        translation = self._translation(end.value[0][:1])
                        statistics.add(translation)
                        return translation
                    finally:
                        statistics.seconds += time.perf_counter() - started
                yield step
        finally:
            iterations.close()
            self._give_back(generator)

    def _step(self, step: StepOutput, output: list[int]) -> Step:
        """Append an iteration's tokens to `output`, and return them as a `Step`."""
        output += step.tokens
        return Step(
            tokens=self._symbols(step.tokens),
            drafted=step.drafted,
            accepted=step.accepted,
            text=self._session.text(output),
            finished=step.finished,
        )

    def _translation(self, hypotheses: Sequence[dict[str, Any]], has_scores: bool = True) -> Translation:
        """Return the translation of a sentence from its hypotheses, the best first."""
        hypothesis, *others = hypotheses
        tokens = hypothesis["tokens"].tolist()
        return Translation(
            text=self._session.text(tokens),
            tokens=self._symbols(tokens),
            score=float(hypothesis["score"]) if has_scores else math.nan,
            token_scores=hypothesis["positional_scores"].tolist() if has_scores else [math.nan] * len(tokens),
            emitted=getattr(hypothesis, "emitted", None),
            alignment=self._alignment(tokens, hypothesis["alignment"]),
            alternatives=[self._translation([other], has_scores) for other in others],
        )

    def _alignment(self, tokens: Sequence[int], pairs: Sequence[tuple[int, int]] | Tensor) -> list[int] | None:
        """Return the source positions of the tokens that are shown, from fairseq's pairs of source and target."""
        if isinstance(pairs, Tensor):
            return None  # nothing was aligned
        eos = self._session.task.target_dictionary.eos()
        shown = [token not in self._session.stripped for token in tokens if token != eos]
        return [source for source, target in pairs if shown[target]]
