"""A loaded model: raw text or subwords in, translations out."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Literal, Unpack, overload

from torch import Tensor

from fairseq_plugins.api.batches import BatchDecoder
from fairseq_plugins.api.generators import CallSearch
from fairseq_plugins.api.inputs import (
    OnError,
    Split,
    attempted,
    check_characters,
    check_choice,
    check_string,
    check_tokens,
    check_words,
    in_place,
    texts_of,
)
from fairseq_plugins.api.options import CallOptions, SearchOptions
from fairseq_plugins.api.results import CallStatistics, Step, Translation
from fairseq_plugins.api.sentences import Input, Subwords, TargetTexts
from fairseq_plugins.api.service import MAX_BEAM, MAX_SENTENCES, Service
from fairseq_plugins.checkpoint.session import TaskSession
from fairseq_plugins.data.sentences import join_text, split_text
from fairseq_plugins.decoding.backends import Backend
from fairseq_plugins.errors import ConfigurationError

_BATCHES_AHEAD = 32
Texts = Iterable[str]


class _OfOneText(CallOptions, total=False):
    """Options of `translate` for a string."""

    drafts: TargetTexts
    constraints: TargetTexts


class _OfTexts(CallOptions, total=False):
    """Options of `translate` for several strings."""

    drafts: Sequence[TargetTexts] | None
    constraints: Sequence[TargetTexts] | None


class _OfTextsAsStrings(_OfTexts, total=False):
    """Options of `translate` that returns strings."""

    return_scores: Literal[False]
    split: Split | None


class Model(BatchDecoder):
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
        session: TaskSession,
        languages: tuple[str, str],
        threads: int | None = None,
        reload: Callable[[], "Model"] | None = None,
        shares: "Model | None" = None,
    ) -> None:
        super().__init__(session, threads, shares)
        self._reload = reload
        self.decoder: str = self._spec.name
        self.is_lossless: bool = self._spec.is_lossless and not session.cfg.task.int8
        self.source_lang, self.target_lang = languages

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
        with self._turn(), self._weights:
            generator = self._take(self._generators.any_search())
            backend: Backend = generator.backend
            self._give_back(generator)
        return f"{backend.name}: {backend.reason}"

    # Where a string is given, mypy takes the first of the signatures that fit.
    @overload
    def translate(  # type: ignore[overload-overlap]
        self, text: str, *, return_scores: Literal[False] = ..., **options: Unpack[_OfOneText]
    ) -> str: ...
    @overload
    def translate(  # type: ignore[overload-overlap]
        self, text: str, *, return_scores: Literal[True], **options: Unpack[_OfOneText]
    ) -> Translation: ...
    @overload
    def translate(
        self, text: Texts, *, on_error: Literal["raise"] = ..., **options: Unpack[_OfTextsAsStrings]
    ) -> list[str]: ...
    @overload
    def translate(
        self,
        text: Texts,
        *,
        return_scores: Literal[True],
        on_error: Literal["raise"] = ...,
        **options: Unpack[_OfTexts],
    ) -> list[Translation]: ...
    @overload
    def translate(
        self, text: Texts, *, on_error: Literal["skip"], **options: Unpack[_OfTextsAsStrings]
    ) -> list[str | None]: ...
    @overload
    def translate(
        self, text: Texts, *, return_scores: Literal[True], on_error: Literal["skip"], **options: Unpack[_OfTexts]
    ) -> list[Translation | None]: ...

    def translate(
        self,
        text: str | Texts,
        *,
        drafts: TargetTexts | Sequence[TargetTexts] = None,
        constraints: TargetTexts | Sequence[TargetTexts] = None,
        return_scores: bool = False,
        split: Split | None = None,
        on_error: OnError = "raise",
        **options: Unpack[CallOptions],
    ) -> Any:
        """Translate a sentence, or several.

        Args:
            text: raw text, one sentence a string; a list of strings for several. Blank text, which shows nothing, gives
                an empty translation.
            drafts: for decoder="reuse", guesses such as an earlier translation, which never change the output: a
                string, several, or None; for several sentences, a list of these.
            constraints: phrases that the output contains, for decoder="fast-beam" or "beam": a string, several, or
                None; for several sentences, a list of these. See `CallOptions.constraint_order`.
            return_scores: return a `Translation` instead of each string.
            split: "sentences" splits each string into its sentences, and joins their translations with the line breaks
                of the string. Models lose content of several sentences in one.
            on_error: "skip" returns None for a text that cannot be translated (too long, half of a character); by
                default it is an error, before any is translated.
            options: see `CallOptions`.

        Raises:
            ConfigurationError: for a text that cannot be translated, a beam that the decoder does not support, an
                option that only `load` takes, not one entry of `drafts` or `constraints` for each sentence, a phrase
                that the model cannot write.
            TypeError: for text that is not made of strings.
        """
        search = self._generators.search(options, constraints is not None, return_scores)
        check_choice(split, "split", None, "sentences")
        check_choice(on_error, "on_error", "raise", "skip")
        if search.num_hypotheses > 1 and not return_scores:
            remedy = "add {--return-scores True}, which gives alternatives"
            raise ConfigurationError("--nbest", search.num_hypotheses, "a string is one", remedy)
        others = {"return_scores": return_scores or None, "drafts": drafts, "constraints": constraints}
        other = next((name for name, value in others.items() if value is not None), None)
        if split is not None and other is not None:
            problem = f"sentences have no {other} of their own"
            raise ConfigurationError("--split", split, problem, "leave one of them out")
        texts, is_one = texts_of(text), isinstance(text, str)
        names = ["text"] if is_one else [f"text[{number}]" for number in range(len(texts))]
        cut_drafts, phrases = self._cut(drafts, "drafts", is_one), self._cut(constraints, "constraints", is_one)
        if split is None:
            sources = attempted(texts, lambda one, number: self._encode(one, names[number]), on_error)
            decoded = self._decode(self._inputs(sources, cut_drafts, phrases), search)
            translations: list[Any] = in_place(sources, decoded if return_scores else [one.text for one in decoded])
        else:
            translations = self._translate_split(texts, names, search, on_error)
        return translations[0] if is_one else translations

    def _translate_split(
        self, texts: Sequence[str], names: Sequence[str], search: CallSearch, on_error: OnError
    ) -> list[str | None]:
        """Translate the sentences of each text, and join them; None for a text that is left out."""

        def read(text: str, number: int) -> tuple[list[str], list[Tensor]]:
            name = names[number]
            check_characters(text, name)
            pairs = split_text(text, self.source_lang)
            sources = [self._encode(sentence, f"{name}, sentence {place}") for place, (sentence, _) in enumerate(pairs)]
            return [separator for _, separator in pairs], sources

        readings = attempted(texts, read, on_error)
        sources = [source for reading in readings if reading is not None for source in reading[1]]
        translations = iter(self._decode(self._inputs(sources), search))
        # One translation for each separator.
        pairs = [
            [(next(translations).text, after) for after in reading[0]] for reading in readings if reading is not None
        ]
        return in_place(readings, [join_text(of_text, self.target_lang) for of_text in pairs])

    def translate_batch(
        self,
        tokens: Sequence[Sequence[str]],
        *,
        drafts: Subwords | None = None,
        constraints: Subwords | None = None,
        numbers: Sequence[int] | None = None,
        return_scores: bool = True,
        **options: Unpack[CallOptions],
    ) -> list[Translation]:
        """Translate sentences given as subwords (see `tokenize`).

        Args:
            tokens: subwords of each sentence, without EOS; subwords that the dictionary lacks become the unknown word.
            drafts, constraints: of each sentence, each as target subwords (see `tokenize_target`); see `translate`.
            numbers: of the sentences, by which samples differ; default: 0, 1, 2 ... Calls that share a text give its
                line numbers.
            return_scores: without scores, which are NaN then, a decoder that keeps one hypothesis is faster on a CPU.
            options: see `CallOptions`.

        Raises:
            ConfigurationError, TypeError: as for `translate`.
        """
        search = self._generators.search(options, constraints is not None, return_scores)
        check_tokens(tokens)
        sources = [self._source(words, f"tokens[{number}]") for number, words in enumerate(tokens)]
        return self._decode(self._inputs(sources, drafts, constraints, numbers), search)

    @overload
    def translate_iterable(
        self, texts: Texts, *, on_error: Literal["raise"] = ..., **options: Unpack[CallOptions]
    ) -> Iterator[Translation]: ...
    @overload
    def translate_iterable(
        self, texts: Texts, *, on_error: Literal["skip"], **options: Unpack[CallOptions]
    ) -> Iterator[Translation | None]: ...

    def translate_iterable(
        self, texts: Texts, *, on_error: OnError = "raise", **options: Unpack[CallOptions]
    ) -> Iterator[Any]:
        """Translate sentences lazily; `texts` may be endless.

        Args:
            texts: raw text, one sentence a string; 32 batches are read ahead and sorted by length.
            on_error: as for `translate`.
            options: see `CallOptions`.

        Yields:
            a `Translation` of each sentence, in order.

        Raises:
            ConfigurationError, TypeError: as for `translate`, when the sentence is reached.
        """
        if isinstance(texts, (str, bytes)) or not isinstance(texts, Iterable):
            raise TypeError(f"texts: is {type(texts).__name__}; use translate, or give a list of strings")
        check_choice(on_error, "on_error", "raise", "skip")
        return self._lazily(iter(texts), self._generators.search(options), on_error)

    def _lazily(self, texts: Iterator[str], search: CallSearch, on_error: OnError) -> Iterator[Translation | None]:
        statistics, before = CallStatistics(), 0
        while chunk := list(islice(texts, search.batch_size * _BATCHES_AHEAD)):
            sources = attempted(chunk, lambda text, number: self._encode(text, f"texts[{before + number}]"), on_error)  # noqa: B023
            inputs = self._inputs(sources, numbers=range(before, before + len(chunk)))
            yield from in_place(sources, self._decode(inputs, search, statistics))
            before += len(chunk)

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
        source = Input(self._encode(text, "text"))
        if source.is_blank:
            self._thread.statistics = CallStatistics(sentences=1)
            return iter([Step([], 0, 0, "", finished=True)])
        return self._stream(source, self._generators.search(options))

    def _check_streams(self) -> None:
        if self._generators.searches_beams:
            problem = "searches with several hypotheses, of which none grows by itself"
            raise ConfigurationError("--decoder", self.decoder, problem, "use another decoder")

    def service(
        self, threads: int | None = None, max_sentences: int = MAX_SENTENCES, max_beam: int = MAX_BEAM
    ) -> Service:
        """Return a service, which decodes sentences of many threads in one running batch: see `Service`."""
        return Service(self, threads, max_sentences, max_beam)

    def tokenize(self, text: str) -> list[str]:
        """Split raw text into source subwords, as `translate` does.

        Raises:
            ConfigurationError, TypeError: as for `translate`.
        """
        check_string(text, "text")
        check_characters(text, "text")
        return self._tokenize(text)

    def tokenize_target(self, text: str) -> list[str]:
        """Split raw text into target subwords, as `translate` does drafts and constraints.

        Raises:
            ConfigurationError, TypeError: as for `translate`.
        """
        check_string(text, "text")
        check_characters(text, "text")
        return self._tokenize(text, of_target=True)

    def detokenize(self, tokens: Sequence[str]) -> str:
        """Join target subwords to raw text, as `translate` does."""
        check_words(tokens, "tokens")
        return self._session.text([*map(self._session.task.target_dictionary.index, tokens)])

    def knows(self, token: str) -> bool:
        """Return whether the target's dictionary has a subword."""
        return token in self._session.task.target_dictionary
