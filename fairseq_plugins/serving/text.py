"""Translate whole texts and HTML: cut them into sentences, translate these together, and join them again."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fairseq_plugins.api import Service, ServiceFailed, ServiceFull, Step, Translation
from fairseq_plugins.data.sentences import join_text, split_text
from fairseq_plugins.serving.errors import RequestError
from fairseq_plugins.serving.models import ServedModel, Way

# Elements of HTML whose text is not translated.
_KEPT = {"code", "kbd", "pre", "samp", "script", "style", "textarea", "var"}
_CONSTRAINED_BEAM = 5  # of requests with constraints that name no beam, as in fairseq
OnSentence = Callable[[int, Step], None]
Pair = tuple[str, str]


@dataclass
class Result:
    """A translated text.

    Attributes:
        text: the translation.
        sentences: source, translation and separator of each sentence.
        alternatives: further translations of the whole text, the best first.
    """

    text: str
    sentences: list[tuple[str, Translation, str]] = field(default_factory=list)
    alternatives: list[str] = field(default_factory=list)


@dataclass
class TextJob:
    """What a request asks for.

    Attributes:
        model: translates.
        options: of the call: `CallOptions` without those that were not given.
        drafts: earlier translations, by sentence.
        constraints: phrases that the translation of the only sentence contains.
        splits: whether texts are cut into sentences.
        return_scores: whether translations need scores.
        way: how the request is decoded.
    """

    model: ServedModel
    options: dict[str, Any] = field(default_factory=dict)
    drafts: list[str] = field(default_factory=list)
    constraints: list[str] = field(default_factory=list)
    splits: bool = True
    return_scores: bool = True
    way: Way = field(init=False)

    def __post_init__(self) -> None:
        """Choose the way, and the beam of a search that names none."""
        model, is_greedy = self.model, self.model.is_greedy
        self.way = "drafts" if self.drafts and is_greedy else "default"
        if self.options.get("sampling") and not self.constraints:
            return
        beam = self.options.get("beam", model.beam)
        if self.constraints and "beam" not in self.options and beam in (None, 1):
            beam = min(_CONSTRAINED_BEAM, model.max_beam)  # one hypothesis alone rarely meets constraints
        if self.constraints or (beam or 1) > 1:
            self.way = "beams"
        elif is_greedy:
            beam = None
        self.options = {**self.options, "beam": beam}

    def cut(self, texts: Sequence[str]) -> list[list[Pair]]:
        """Return the sentences of each text, each with the separator after it.

        Raises RequestError for more texts or sentences than a request may have, or several with constraints.
        """
        source, _ = self._languages()
        most = self.model.max_waiting
        if len(texts) > most:
            raise RequestError(400, f"the request has {len(texts)} texts, and may have {most}; send less at a time")
        cut = [split_text(text, source) if self.splits and text else [(text, "")] for text in texts]
        count = sum(map(len, cut))
        if count > most:
            raise RequestError(400, f"the request has {count} sentences, and may have {most}; send less at a time")
        if self.constraints and count != 1:
            raise RequestError(
                400, f"constraints are for one sentence, and the request has {count}; send one at a time"
            )
        return cut

    async def translate(self, cut: Sequence[Sequence[Pair]], on_step: OnSentence | None = None) -> list[Result]:
        """Translate texts, their sentences together.

        Args:
            cut: the sentences of each text, as `cut` returns them.
            on_step: called with the number of a sentence and each of its iterations, in another thread.

        Raises:
            ServiceFull, ServiceClosed, ConfigurationError: as `Service.submit`.
        """
        _, target = self._languages()
        sentences = [sentence for pairs in cut for sentence, _ in pairs]
        futures = await self._submit(sentences, on_step)
        try:
            translated = await asyncio.gather(*map(asyncio.wrap_future, futures))
        finally:
            for future in futures:
                future.cancel()
        left = iter(translated)
        return [_joined([(sentence, next(left), separator) for sentence, separator in pairs], target) for pairs in cut]

    async def translate_html(self, texts: Sequence[str]) -> list[Result]:
        """Translate the text of HTML, piece by piece between its tags, which stay where they are."""
        # Python's parser takes seconds for some texts.
        soups, pieces, cut = await asyncio.to_thread(self._read_html, texts)
        results = await self.translate(cut)
        for piece, result in zip(pieces, results, strict=True):
            piece.replace_with(result.text)
        every = [sentence for result in results for sentence in result.sentences]
        return [Result(str(soup), every if number == 0 else []) for number, soup in enumerate(soups)]

    def _read_html(self, texts: Sequence[str]) -> tuple[list[Any], list[Any], list[list[Pair]]]:
        """Return the parsed texts, the pieces of them that are translated, and the sentences of each piece."""
        from bs4 import BeautifulSoup

        soups = [BeautifulSoup(text, "html.parser") for text in texts]
        pieces = [piece for soup in soups for piece in _pieces(soup)]
        return soups, pieces, self.cut([str(piece) for piece in pieces])

    async def _service(self, way: Way) -> Service:
        model = self.model
        return model.service(way) if model.has(way) else await asyncio.to_thread(model.service, way)

    async def _submit(self, sentences: Sequence[str], on_step: OnSentence | None) -> list["Future[Translation]"]:
        """Begin to translate sentences, all of them or none; the event loop has its turn between any two."""
        model, way = self.model, self.way
        if model.sentences + len(sentences) > model.max_waiting:
            raise ServiceFull("too many sentences wait")
        futures: list[Future[Translation]] = []
        model.unsubmitted += len(sentences)
        try:
            for number, sentence in enumerate(sentences):
                if number:
                    await asyncio.sleep(0)
                drafts = self._drafts(number) if way == "drafts" else []
                # Of a request with drafts, sentences without any have the model's own drafter.
                of_sentence: Way = way if drafts or way != "drafts" else "default"
                streamed = None if on_step is None else partial(on_step, number)
                future = None
                while future is None:
                    service = await self._service(of_sentence)
                    with suppress(ServiceFailed):
                        future = service.submit(
                            sentence,
                            drafts=drafts or None,
                            constraints=self.constraints or None,
                            on_step=streamed,
                            number=number,
                            return_scores=self.return_scores,
                            renew=False,  # not on the event loop
                            **self.options,
                        )
                futures.append(future)
                model.unsubmitted -= 1
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        finally:
            model.unsubmitted -= len(sentences) - len(futures)
        return futures

    def _languages(self) -> tuple[str, str]:
        assert self.model.languages is not None
        return self.model.languages

    def _drafts(self, number: int) -> list[str]:
        """Return the drafts of a sentence: the earlier translations at its place and beside it, the text may grow."""
        near = (number, number - 1, number + 1)
        return [self.drafts[i] for i in near if 0 <= i < len(self.drafts) and self.drafts[i].strip()]


def _pieces(soup: Any) -> Iterator[Any]:
    """Yield the text between tags that is translated, each piece once, however deep the tags are nested."""
    from bs4.element import NavigableString, Tag

    left = [soup]
    while left:
        node = left.pop()
        if isinstance(node, Tag):
            left += reversed(node.contents if node.name not in _KEPT else [])
        elif type(node) is NavigableString and node.strip():
            yield node


def _joined(sentences: list[tuple[str, Translation, str]], language: str) -> Result:
    def text(choose: Callable[[Translation], str]) -> str:
        return join_text([(choose(translation), separator) for _, translation, separator in sentences], language)

    count = max((len(translation.alternatives) for _, translation, _ in sentences), default=0)
    alternatives = [
        text(lambda best, k=k: best.alternatives[k].text if k < len(best.alternatives) else best.text)  # type: ignore[misc]
        for k in range(count)
    ]
    return Result(text(lambda best: best.text), sentences, alternatives)
