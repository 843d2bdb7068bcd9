"""Our own interface: all options of a call, scores, drafts, and a stream of accepted tokens."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from fastapi import APIRouter, Depends, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator
from pydantic_core import PydanticCustomError

from fairseq_plugins.api import Model, Step, Translation
from fairseq_plugins.api.options import CallOptions
from fairseq_plugins.serving.errors import as_request_error
from fairseq_plugins.serving.requests import account_of, count, until_gone
from fairseq_plugins.serving.text import Pair, Result, TextJob

if TYPE_CHECKING:
    from fairseq_plugins.serving.app import Server

_OPTIONS: dict[str, Any] = {
    name: (kind | None, None) for name, kind in get_type_hints(CallOptions).items() if name != "batch_size"
}


class _KnownFields(BaseModel):
    """Refuses unknown fields and values of other types, as Python's calls do: "yes" is not true, and 5.0 not 5.

    Of many unknown fields only the first is an error, since making an error takes 0.1 ms.
    """

    model_config = ConfigDict(extra="forbid", strict=True)  # extra: for /docs

    @model_validator(mode="before")
    @classmethod
    def refuse_unknown(cls, values: Any) -> Any:
        for name in values if isinstance(values, dict) else ():
            if name not in cls.model_fields:
                raise PydanticCustomError("unknown_field", "no such field", {"name": name})
        return values


Options: Any = create_model("Options", __base__=_KnownFields, **_OPTIONS)
Events = AsyncIterator[ServerSentEvent]
Texts = Annotated[list[str], Field(fail_fast=True)]


class V1Request(_KnownFields):
    """A text, or several, and how to translate it."""

    text: str | Texts
    source: str | None = Field(None, description="code of the language; may be left out if one model fits")
    target: str = Field(description="code of the language")
    options: Options = Field(default_factory=Options, description="of the call, as in Python")
    drafts: Texts = Field([], description="earlier translations, a sentence each; they never change the output")
    constraints: Texts = Field([], description="phrases that the translation contains; the text is one sentence")
    split: bool = Field(True, description="whether a text is cut into sentences")
    tokens: bool = Field(False, description="whether the answer has tokens and their scores")
    api_key: str | None = None


class TranslatedSentence(BaseModel):
    """A translated sentence; scores are natural logarithms."""

    source: str
    text: str
    score: float
    iterations: int | None
    emitted: list[int] | None = Field(description="tokens that each iteration added")
    alternatives: list[dict[str, Any]]
    tokens: list[str] | None = None
    token_scores: list[float] | None = None
    alignment: list[int] | None = Field(None, description="index into source_tokens for each token of the translation")
    source_tokens: list[str] | None = None


class Translated(BaseModel):
    """A translated text."""

    text: str
    sentences: list[TranslatedSentence]


class V1Response(BaseModel):
    """The translations, in the order of the request."""

    translations: list[Translated]
    source: str
    target: str
    decoder: str
    seconds: float


def router(server: "Server") -> APIRouter:
    """Return the routes."""
    routes = APIRouter(prefix="/v1", tags=["v1"])

    async def begin(request: Request, asked: V1Request) -> tuple[TextJob, list[list[Pair]]]:
        """Check a request, before its answer begins."""
        texts = [asked.text] if isinstance(asked.text, str) else asked.text
        model = server.find_model(request, asked.api_key, texts, asked.source, asked.target, asked.constraints)
        options = {name: value for name, value in asked.options.model_dump().items() if value is not None}
        job = TextJob(model, options, asked.drafts, asked.constraints, asked.split)
        return job, job.cut(texts)

    def answer(request: Request, asked: V1Request, job: TextJob, results: list[Result], started: float) -> V1Response:
        count(request, results)
        source, target = job.model.languages or ("", "")
        return V1Response(
            translations=[_translated(job.model.model, result, asked.tokens) for result in results],
            source=source,
            target=target,
            decoder=job.model.decoder(job.way),
            seconds=time.perf_counter() - started,
        )

    @routes.post("/translate")
    async def translate(request: Request, asked: V1Request, begun: Annotated[Any, Depends(begin)]) -> V1Response:
        """Translate a text, or several."""
        started = time.perf_counter()
        job, cut = begun
        results = await until_gone(request, job.translate(cut), server.settings.timeout)
        return answer(request, asked, job, results, started)

    @routes.post("/stream", response_class=EventSourceResponse)
    async def stream(request: Request, asked: V1Request, begun: Annotated[Any, Depends(begin)]) -> Events:
        """Translate, and send the sentences (`begin`), each iteration (`step`), and then `end`, or `error`."""
        started = time.perf_counter()
        job, cut = begun
        steps: asyncio.Queue[tuple[int, Step] | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def on_step(number: int, step: Step) -> None:
            loop.call_soon_threadsafe(steps.put_nowait, (number, step))

        sentences = [{"source": sentence, "separator": separator} for pairs in cut for sentence, separator in pairs]
        yield ServerSentEvent(event="begin", data={"sentences": sentences})

        def on_end(work: asyncio.Future[list[Result]]) -> None:
            work.cancelled() or work.exception()  # else asyncio logs it, with its text, if the client has left
            steps.put_nowait(None)

        # Not of the answer: its client may read slowly.
        work = asyncio.ensure_future(asyncio.wait_for(job.translate(cut, on_step), server.settings.timeout))
        work.add_done_callback(on_end)
        try:
            while (item := await steps.get()) is not None:
                number, step = item
                yield ServerSentEvent(event="step", data={"sentence": number, **asdict(step)})
            last = answer(request, asked, job, await work, started)
            yield ServerSentEvent(event="end", data=last.model_dump())
        except (asyncio.CancelledError, GeneratorExit):
            account_of(request).outcome = "client left"
            raise
        except Exception as error:
            known = as_request_error(error)
            account_of(request).outcome = f"error {known.status_code}"
            yield ServerSentEvent(event="error", data={"error": known.detail})
        finally:
            work.cancel()

    @routes.get("/models")
    async def models() -> list[dict[str, Any]]:
        """The models, and how they decode."""
        return [model.description() for model in server.registry.models]

    return routes


def _translated(model: Model, result: Result, has_tokens: bool) -> Translated:
    return Translated(
        text=result.text,
        sentences=[
            TranslatedSentence(
                source=source,
                iterations=translation.iterations,
                emitted=translation.emitted,
                source_tokens=None if translation.alignment is None else model.tokenize(source),
                alternatives=[_scored(other, has_tokens) for other in translation.alternatives],
                **_scored(translation, has_tokens),
            )
            for source, translation, _ in result.sentences
        ],
    )


def _scored(translation: Translation, has_tokens: bool) -> dict[str, Any]:
    values: dict[str, Any] = {"text": translation.text, "score": translation.score}
    if has_tokens or translation.alignment is not None:
        values |= {"tokens": translation.tokens, "token_scores": translation.token_scores}
    if translation.alignment is not None:
        values["alignment"] = translation.alignment
    return values
