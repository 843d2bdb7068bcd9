"""A loaded model: raw text or subwords in, translations out."""

import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Literal, Unpack, overload

import torch
from torch import Tensor

from fairseq_plugins.api import live
from fairseq_plugins.api.drafts import Drafts, check_drafts, cut_drafts
from fairseq_plugins.api.generators import Generators, Search
from fairseq_plugins.api.options import CallOptions, SearchOptions
from fairseq_plugins.api.results import CallStatistics, RecordedStats, Step, Translation
from fairseq_plugins.api.service import MAX_BEAM, MAX_SENTENCES, Service
from fairseq_plugins.api.spelling import python_errors
from fairseq_plugins.api.text import TextCoder
from fairseq_plugins.commands.session import Session
from fairseq_plugins.decoding import methods
from fairseq_plugins.decoding.backends import Backend
from fairseq_plugins.decoding.generator import DraftVerifyGenerator
from fairseq_plugins.decoding.state import StepOutput
from fairseq_plugins.errors import ConfigurationError

_BATCHES_AHEAD = 32
Texts = Iterable[str]


class Model:
    """A model and its decoder; made by `fairseq_plugins.load`.

    Thread-safe: calls of several threads take turns batch by batch, and each thread has the statistics of its own
    calls. A copy, also one that is pickled for another process, loads the files again.

    Attributes:
        decoder: name of the decoding method.
        is_lossless: whether its output is, token for token, that of fairseq's own search.
        source_lang, target_lang: names of the languages.
        max_source_tokens: maximum source length in tokens, with EOS and without a language token.
    """

    def __init__(
        self,
        session: Session,
        languages: tuple[str, str],
        threads: int | None = None,
        reload: Callable[[], "Model"] | None = None,
    ) -> None:
        self._session = session
        self._reload = reload
        self._threads = threads
        self._spec, _ = methods.chosen(session.cfg.task)
        self._text = TextCoder(session)
        self._generators = Generators(session, self._spec)
        self._lock = threading.RLock()
        self._thread = threading.local()
        self.decoder: str = self._spec.name
        self.is_lossless: bool = self._spec.is_lossless and not session.cfg.task.int8
        self.source_lang, self.target_lang = languages
        # Build a generator, so that options that do not fit the model fail here, not at the first sentence.
        self._give_back(self._take(self._generators.search({})))
        # The task may put a language token before each source.
        blank = session.batch(self._dataset([self._text.source([])]), [0])
        self.max_source_tokens: int = session.max_positions[0] + 1 - int(blank["net_input"]["src_lengths"][0])

    def __repr__(self) -> str:
        cfg = self._session.cfg
        drafter = getattr(cfg.task, "drafter_path", None)
        names = [repr(cfg.common_eval.path), *([] if drafter is None else [f"drafter={drafter!r}"])]
        return f"Model({', '.join(names)}, decoder={self.decoder!r})"

    def __reduce__(self) -> tuple[Callable[[], "Model"], tuple[()]]:
        if self._reload is None:
            raise TypeError("this model was not made by fairseq_plugins.load, which alone can load it again; share it")
        return self._reload, ()

    @property
    def backend(self) -> str:
        """Name of the backend and why it was chosen: "native: the compiled kernels ..."."""
        if self._spec.build is None:
            return "fairseq: its own beam search"
        with self._turn():
            generator = self._take(self._generators.search({}))
            backend: Backend = generator.backend
            self._give_back(generator)
        return f"{backend.name}: {backend.reason}"

    @property
    def statistics(self) -> CallStatistics:
        """Counts of this thread's last call; for an iterator that has not ended, counts so far."""
        return getattr(self._thread, "statistics", None) or CallStatistics()

    # Where a string is given, mypy takes the first of the signatures that fit.
    @overload
    def translate(  # type: ignore[overload-overlap]
        self, text: str, *, drafts: Drafts = ..., return_scores: Literal[False] = ..., **options: Unpack[CallOptions]
    ) -> str: ...
    @overload
    def translate(  # type: ignore[overload-overlap]
        self, text: str, *, drafts: Drafts = ..., return_scores: Literal[True], **options: Unpack[CallOptions]
    ) -> Translation: ...
    @overload
    def translate(
        self,
        text: Texts,
        *,
        drafts: Sequence[Drafts] | None = ...,
        return_scores: Literal[False] = ...,
        **options: Unpack[CallOptions],
    ) -> list[str]: ...
    @overload
    def translate(
        self,
        text: Texts,
        *,
        drafts: Sequence[Drafts] | None = ...,
        return_scores: Literal[True],
        **options: Unpack[CallOptions],
    ) -> list[Translation]: ...

    def translate(
        self,
        text: str | Texts,
        *,
        drafts: Drafts | Sequence[Drafts] = None,
        return_scores: bool = False,
        **options: Unpack[CallOptions],
    ) -> str | Translation | list[str] | list[Translation]:
        """Translate a sentence, or several.

        Args:
            text: raw text of a sentence, or sentences. A blank sentence gives an empty translation.
            drafts: for decoder="reuse", guesses such as an earlier translation, which never change the output: a
                string, several, or None; for several sentences, a list of these.
            return_scores: return a `Translation` instead of each string.
            options: see `CallOptions`.

        Raises:
            ConfigurationError: for a sentence that is too long, a beam that the decoder does not support, an option
                that only `load` takes, or not one entry of `drafts` for each sentence.
        """
        search = self._generators.search(options)
        if search.num_hypotheses > 1 and not return_scores:
            raise ConfigurationError(
                f"num_hypotheses={search.num_hypotheses}: a string is one; add return_scores=True, which gives "
                "alternatives"
            )
        self._thread.statistics = CallStatistics()
        texts = [text] if isinstance(text, str) else list(text)
        by_sentence = [drafts] if isinstance(text, str) and drafts is not None else drafts
        ids = None if by_sentence is None else self._draft_ids(cut_drafts(by_sentence, self.tokenize), len(texts))
        translations = self._decode([self._encode(sentence) for sentence in texts], search, ids)
        if isinstance(text, str):
            return translations[0] if return_scores else translations[0].text
        return translations if return_scores else [translation.text for translation in translations]

    def translate_batch(
        self,
        tokens: Sequence[Sequence[str]],
        *,
        drafts: Sequence[Sequence[Sequence[str]]] | None = None,
        **options: Unpack[CallOptions],
    ) -> list[Translation]:
        """Translate sentences given as subwords (see `tokenize`).

        Args:
            tokens: subwords of each sentence, without EOS; subwords that the dictionary lacks become the unknown word.
            drafts: drafts of each sentence, each as target subwords; see `translate`.
            options: see `CallOptions`.

        Raises:
            ConfigurationError: as for `translate`.
        """
        self._thread.statistics = CallStatistics()
        ids = self._draft_ids(drafts, len(tokens))
        return self._decode([self._text.source(words) for words in tokens], self._generators.search(options), ids)

    def translate_iterable(self, texts: Iterable[str], **options: Unpack[CallOptions]) -> Iterator[Translation]:
        """Translate sentences lazily; `texts` may be endless.

        Args:
            texts: raw text; 32 batches are read ahead and sorted by length.
            options: see `CallOptions`.

        Yields:
            a `Translation` of each sentence, in order.

        Raises:
            ConfigurationError: as for `translate`, when the sentence is reached.
            TypeError: for a string by itself.
        """
        if isinstance(texts, str):
            raise TypeError(f"texts is one string, not several: {texts[:60]!r}; use translate, or give a list")
        return self._lazily(iter(texts), self._generators.search(options))

    def _lazily(self, texts: Iterator[str], search: Search) -> Iterator[Translation]:
        statistics = CallStatistics()
        while chunk := list(islice(texts, search.batch_size * _BATCHES_AHEAD)):
            self._thread.statistics = statistics
            yield from self._decode([self._encode(text) for text in chunk], search)

    def stream(self, text: str, **options: Unpack[SearchOptions]) -> Iterator[Step]:
        """Translate a sentence and yield the tokens of each iteration.

        Args:
            text: raw text of one sentence.
            options: see `SearchOptions`.

        Yields:
            a `Step` for each iteration; the last one has the whole text.

        Raises:
            ConfigurationError: for a decoder that keeps several hypotheses, or a sentence that is too long.
        """
        self._check_streams()
        source = self._encode(text)
        self._check_length(source, 0)
        if len(source) == 1:
            self._thread.statistics = CallStatistics(sentences=1)
            return iter([Step([], 0, 0, "", finished=True)])
        return self._stream(source, self._generators.search(options))

    def _check_streams(self) -> None:
        if self._generators.searches_beams:
            raise ConfigurationError(
                f"decoder {self.decoder}: searches with several hypotheses, of which none grows by itself; use "
                "another decoder"
            )

    def _stream(
        self, source: Tensor, search: Search, drafts: Sequence[Sequence[int]] | None = None
    ) -> Generator[Step, None, Translation]:
        generator = self._take(search)
        statistics = self._thread.statistics = CallStatistics()
        sample = self._session.batch(self._dataset([source]), [0])
        if drafts is not None:
            sample["drafts"] = [drafts]
        iterations = self._session.steps(generator, sample)
        output: list[int] = []
        try:
            while True:
                with self._turn():
                    started = time.perf_counter()
                    try:
                        step = self._step(next(iterations)[0], output)
                    except StopIteration as end:
                        translation = self._translation(end.value[0][:1], generator.stats.take()[0].emitted)
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
            tokens=self._text.symbols(step.tokens),
            drafted=step.drafted,
            accepted=step.accepted,
            text=self._text.join(output),
            finished=step.finished,
        )

    def service(
        self, threads: int | None = None, max_sentences: int = MAX_SENTENCES, max_beam: int = MAX_BEAM
    ) -> Service:
        """Return a service, which decodes sentences of many threads in one running batch: see `Service`."""
        return Service(self, threads, max_sentences, max_beam)

    def session(self) -> live.Session:
        """Return a session for text that changes: see `fairseq_plugins.Session`."""
        return live.Session(self)

    def tokenize(self, text: str) -> list[str]:
        """Split raw text into source subwords, as `translate` does."""
        return self._text.tokenize(text)

    def detokenize(self, tokens: Sequence[str]) -> str:
        """Join target subwords to raw text, as `translate` does."""
        return self._text.join(self._text.target(tokens))

    def knows(self, token: str) -> bool:
        """Return whether the target's dictionary has a subword."""
        return token in self._session.task.target_dictionary

    def _encode(self, text: str) -> Tensor:
        return self._text.source(self.tokenize(text))

    def _draft_ids(
        self, drafts: Sequence[Sequence[Sequence[str]]] | None, sentences: int
    ) -> list[list[list[int]]] | None:
        """Return the token ids of each sentence's drafts."""
        if drafts is None:
            return None
        check_drafts(drafts, sentences, self.decoder)
        return [[self._text.target(draft) for draft in of_sentence] for of_sentence in drafts]

    def _check_length(self, source: Tensor, number: int) -> None:
        if len(source) > self.max_source_tokens:
            raise ConfigurationError(
                f"sentence {number}: has {len(source)} tokens, and the model reads at most {self.max_source_tokens}; "
                "split it"
            )

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the lock, and set torch to the model's number of threads."""
        with self._lock:
            before = torch.get_num_threads()
            if self._threads is not None:
                torch.set_num_threads(self._threads)
            try:
                with python_errors():
                    yield
            finally:
                if self._threads is not None:
                    torch.set_num_threads(before)

    def _take(self, search: Search) -> Any:
        with self._turn():
            generator = self._generators.take(search)
        if isinstance(generator, DraftVerifyGenerator):
            generator.stats = RecordedStats(self.decoder)
        return generator

    def _give_back(self, generator: Any) -> None:
        with self._lock:
            self._generators.give_back(generator)

    def _dataset(self, sources: Sequence[Tensor]) -> Any:
        dataset = self._session.task.build_dataset_for_inference(sources, [len(source) for source in sources])
        dataset.ordered_indices()  # else fairseq's multilingual_translation has no sentences
        return dataset

    def _decode(
        self, sources: Sequence[Tensor], search: Search, drafts: Sequence[Sequence[Sequence[int]]] | None = None
    ) -> list[Translation]:
        """Decode sentences in batches of similar length, and add them to the statistics of this thread's call."""
        statistics = self._thread.statistics
        for number, source in enumerate(sources):
            self._check_length(source, number)
        # Given EOS alone, a model hallucinates a sentence.
        blank = [number for number, source in enumerate(sources) if len(source) == 1]
        translations = {number: self._blank() for number in blank}
        for translation in translations.values():
            statistics.add(translation)
        order = sorted(set(range(len(sources))) - set(blank), key=lambda number: (len(sources[number]), number))
        generator = self._take(search)
        try:
            for start in range(0, len(order), search.batch_size):
                numbers = order[start : start + search.batch_size]
                with self._turn():
                    sample = self._session.batch(self._dataset(sources), numbers)
                    if drafts is not None:
                        sample["drafts"] = [drafts[number] for number in sample["id"].tolist()]
                    for number, translation in self._decode_batch(generator, sample, search.num_hypotheses, statistics):
                        translations[number] = translation
                        statistics.add(translation)
        finally:
            self._give_back(generator)
        return [translations[number] for number in range(len(sources))]

    def _blank(self) -> Translation:
        return Translation("", [], 0.0, [], None if self._spec.build is None else [])

    def _decode_batch(
        self, generator: Any, sample: dict[str, Any], num_hypotheses: int, statistics: CallStatistics
    ) -> Iterator[tuple[int, Translation]]:
        started = time.perf_counter()
        hypotheses = self._session.decode(generator, sample)
        statistics.seconds += time.perf_counter() - started
        stats = getattr(generator, "stats", None)
        counted = stats.take() if isinstance(stats, RecordedStats) else {}
        for number, of_sentence in zip(sample["id"].tolist(), hypotheses, strict=True):
            stats = counted.get(number)
            yield number, self._translation(of_sentence[:num_hypotheses], None if stats is None else stats.emitted)

    def _translation(self, hypotheses: Sequence[dict[str, Tensor]], emitted: list[int] | None) -> Translation:
        hypothesis, *others = hypotheses
        tokens = hypothesis["tokens"].tolist()
        return Translation(
            text=self._text.join(tokens),
            tokens=self._text.symbols(tokens),
            score=float(hypothesis["score"]),
            token_scores=hypothesis["positional_scores"].tolist(),
            emitted=emitted,
            alternatives=[self._translation([other], None) for other in others],
        )
