"""LibreTranslate's interface (its API documentation): clients of LibreTranslate work unchanged."""

from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import parse_qsl

from babel import Locale
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field, ValidationError

from fairseq_plugins.serving.errors import RequestError
from fairseq_plugins.serving.requests import count, until_gone
from fairseq_plugins.serving.text import TextJob
from fairseq_plugins.shared.typed_values import parse_json

if TYPE_CHECKING:
    from fairseq_plugins.serving.app import Server


class TranslateRequest(BaseModel):
    """The fields of /translate, in JSON or in a form."""

    q: str | Annotated[list[str], Field(fail_fast=True)] = Field(description="text, or several")
    source: str = Field("auto", description="code of the language; auto where one model translates into the target")
    target: str = Field(description="code of the language")
    format: Literal["text", "html"] = Field("text", description="html keeps tags, and translates the text between them")
    alternatives: int = Field(0, ge=0, description="further translations, from beam search")
    api_key: str | None = None


def router(server: "Server") -> APIRouter:
    """Return the routes."""
    routes = APIRouter(tags=["LibreTranslate"])
    registry = server.registry
    body = {"content": {"application/json": {"schema": TranslateRequest.model_json_schema()}}}

    @routes.post("/translate", openapi_extra={"requestBody": body})
    async def translate(request: Request) -> JSONResponse:
        """Translate text or HTML. JSON, or a form."""
        asked = await _read(request)
        texts = [asked.q] if isinstance(asked.q, str) else asked.q
        model = server.find_model(request, asked.api_key, texts, asked.source, asked.target)
        options = _options(asked, model.beam or 1, model.max_beam)
        job = TextJob(model, options, return_scores=False)
        work = job.translate_html(texts) if asked.format == "html" else job.translate(job.cut(texts))
        results = await until_gone(request, work, server.settings.timeout)
        count(request, results)
        answer: dict[str, Any] = {"translatedText": _same_shape(asked.q, [result.text for result in results])}
        if asked.source == "auto" and model.languages is not None:
            # Not detected: no other model translates into the target.
            guess = {"confidence": 0, "language": model.languages[0]}
            answer["detectedLanguage"] = _same_shape(asked.q, [guess] * len(texts))
        if asked.alternatives:
            answer["alternatives"] = _same_shape(asked.q, [result.alternatives for result in results])
        return JSONResponse(answer)

    @routes.get("/languages")
    async def languages() -> list[dict[str, Any]]:
        """The languages, and what each can be translated into."""
        targets: dict[str, list[str]] = {}
        for model in registry.ready():
            assert model.languages is not None
            source, target = model.languages
            targets.setdefault(source, []).append(target)
            targets.setdefault(target, [])
        return [{**named(code), "targets": sorted(found)} for code, found in sorted(targets.items())]

    @routes.post("/detect")
    async def detect() -> None:
        """Refused: this server detects no languages."""
        raise RequestError(501, "this server detects no languages; name the source")

    return routes


def named(code: str) -> dict[str, str]:
    """Return a language's code and English name."""
    names = Locale("en").languages
    short = code.replace("_", "-").split("-")[0].lower()
    return {"code": code, "name": names.get(code) or names.get(short) or code}


async def _read(request: Request) -> TranslateRequest:
    """Return the fields of a request in JSON, or in a form."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    values: Any
    if kind == "multipart/form-data":
        values = dict(await request.form())
    elif kind == "application/x-www-form-urlencoded":
        # Not request.form(), which reads characters that are not escaped, as `curl -d` sends them, as Latin-1.
        try:
            form = (await request.body()).decode()
            values = dict(parse_qsl(form, keep_blank_values=True, errors="strict"))
        except UnicodeDecodeError as error:
            raise RequestError(400, f"the form is not UTF-8: {error}") from None
    else:
        body = await request.body()
        try:
            values = parse_json(body, dict[str, Any]) if body else {}  # some clients put all fields into the address
        except ValueError as error:
            raise RequestError(400, f"the body is no JSON object: {error}") from None
    values = {**request.query_params, **values}
    for name in ("q", "target"):
        if values.get(name) in (None, ""):
            if name == "q" and values.get("q") == "":
                continue
            raise RequestError(400, f"Invalid request: missing {name} parameter")
    try:
        return TranslateRequest.model_validate({name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise RequestError(400, f"{first['loc'][0]}: {first['msg']}") from None


def _options(asked: TranslateRequest, beam: int, max_beam: int) -> dict[str, Any]:
    if not asked.alternatives:
        return {}
    wanted = asked.alternatives + 1
    if wanted > max_beam:
        raise RequestError(400, f"alternatives {asked.alternatives}: this server gives at most {max_beam - 1}")
    return {"beam": min(max_beam, max(beam, wanted, 5)), "num_hypotheses": wanted}


def _same_shape(asked: str | list[str], answers: list[Any]) -> Any:
    return answers[0] if isinstance(asked, str) else answers
