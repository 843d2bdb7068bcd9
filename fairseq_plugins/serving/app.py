"""The server's application: its routes, errors, keys and lifetime."""

import asyncio
import hmac
import logging
import traceback
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from fastapi_offline import FastAPIOffline
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from fairseq_plugins.api.inputs import check_characters
from fairseq_plugins.errors import did_you_mean
from fairseq_plugins.pages.template import template
from fairseq_plugins.process.deferred import without_garbage_collection
from fairseq_plugins.serving import libretranslate, v1
from fairseq_plugins.serving.errors import Gone, RequestError, as_request_error
from fairseq_plugins.serving.metrics import Metrics
from fairseq_plugins.serving.models import Registry, ServedModel
from fairseq_plugins.serving.requests import Accounting, account_of
from fairseq_plugins.serving.settings import Settings
from fairseq_plugins.version import __version__

logger = logging.getLogger("spec-dec-serve")


class Server:
    """What the routes share."""

    def __init__(self, models: list[ServedModel], settings: Settings) -> None:
        self.registry, self.settings = Registry(models), settings
        self.metrics = Metrics(self.registry)

    def check_key(self, request: Request, given: str | None) -> None:
        """Raise RequestError unless the request has a key: its `api_key`, or a bearer token."""
        keys = self.settings.api_keys
        if not keys:
            return
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        found = given or (token.strip() if scheme.lower() == "bearer" else "")
        if not found:
            raise RequestError(401, "this server needs a key: give api_key")
        as_bytes = found.encode(errors="surrogatepass")
        if not any(hmac.compare_digest(as_bytes, key.encode(errors="surrogatepass")) for key in keys):
            raise RequestError(403, "Invalid API key")

    def find_model(
        self,
        request: Request,
        key: str | None,
        texts: list[str],
        source: str | None,
        target: str,
        constraints: Sequence[str] = (),
    ) -> ServedModel:
        """Return the model of a request that may translate these texts; raise RequestError for any other."""
        self.check_key(request, key)
        self.check_characters(texts, constraints)
        model = self.registry.find(source, target)
        account_of(request).model = model.name
        assert model.model  # raises unless it is ready
        return model

    def check_characters(self, texts: list[str], constraints: Sequence[str]) -> None:
        """Raise RequestError for what is too long together, ConfigurationError for half of a character in a text."""
        for text in texts:
            check_characters(text, "text")
        count, most = sum(map(len, [*texts, *constraints])), self.settings.max_characters
        if count > most:
            raise RequestError(400, f"the request has {count} characters, and may have {most}; send less at a time")


def make_app(models: list[ServedModel], settings: Settings) -> FastAPI:
    """Return the application; its models load in the background."""
    server = Server(models, settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        loading = asyncio.ensure_future(asyncio.to_thread(_load_all, server.registry))
        yield
        loading.cancel()
        await asyncio.gather(*(asyncio.to_thread(model.close) for model in models))

    app = FastAPIOffline(
        redoc_url=None,
        title="spec-dec-serve",
        version=__version__,
        description="Translation with LibreTranslate's interface, and `/v1/translate` with all options of decoding.",
        lifespan=lifespan,
    )
    app.state.server = server
    app.include_router(libretranslate.router(server))
    app.include_router(v1.router(server))
    _add_operation(app, server)
    for kind in (HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _answer)
    if settings.origins:
        app.add_middleware(CORSMiddleware, allow_origins=settings.origins, allow_methods=["*"], allow_headers=["*"])
    paths = frozenset(["/", *app.openapi()["paths"]])
    app.add_middleware(Accounting, metrics=server.metrics, answer=_answer, paths=paths, max_bytes=settings.max_bytes)
    return app


def _load_all(registry: Registry) -> None:
    # In a command, the collector never visits the objects of the models later: that would stop all requests meanwhile.
    with without_garbage_collection():
        registry.load()


def _add_operation(app: FastAPI, server: Server) -> None:
    """Add the page, and what operators ask for."""
    page = template("serve.html")
    settings, registry = server.settings, server.registry

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def index() -> HTMLResponse:
        return HTMLResponse(page)

    @app.get("/health", tags=["operation"])
    async def health() -> dict[str, str]:
        """Whether the process answers."""
        return {"status": "ok"}

    @app.get("/ready", tags=["operation"])
    async def ready() -> JSONResponse:
        """Whether all models can translate: 503 while one loads or is broken."""
        states = {name: {"state": model.state, "problem": model.problem} for name, model in registry.named().items()}
        is_ready = all(model.state == "ready" for model in registry.models)
        return JSONResponse({"ready": is_ready, "models": states}, 200 if is_ready else 503)

    @app.get("/metrics", tags=["operation"], response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(generate_latest(server.metrics.collectors), media_type=CONTENT_TYPE_LATEST)

    @app.get("/frontend/settings", tags=["LibreTranslate"])
    async def frontend_settings() -> dict[str, Any]:
        """What a user interface of LibreTranslate asks for."""
        pairs = [model.languages for model in registry.ready() if model.languages is not None]
        source, target = (libretranslate.named(code) for code in pairs[0]) if pairs else (None, None)
        return {
            "apiKeys": bool(settings.api_keys),
            "keyRequired": bool(settings.api_keys),
            "charLimit": settings.max_characters,
            "filesTranslation": False,
            "frontendTimeout": 300,
            "language": {"source": source, "target": target},
            "suggestions": False,
            "supportedFilesFormat": [],
        }


def _answer(request: Request, error: Exception) -> Response:
    """Answer an error as LibreTranslate does: {"error": message}."""
    if isinstance(error, (Gone, ClientDisconnect)):
        return Response(status_code=499)
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        places = [str(part) for part in first["loc"] if part != "body"]
        message = first["msg"]
        if first["type"] == "unknown_field":
            name = first["ctx"]["name"]
            places.append(name)
            nearest = did_you_mean(name, {*v1.V1Request.model_fields, *v1.Options.model_fields})
            belongs = "give it in options" if name in v1.Options.model_fields else nearest
            message = f"no such field; {belongs or 'see /docs'}"
        place = ".".join(places)
        if first["type"] == "json_invalid":
            place, message = "", f"not JSON: {first['ctx']['error']}"
        elif not places:
            message = "no object; send JSON with Content-Type: application/json"
        error = RequestError(400, f"{place or 'the body'}: {message}")
    if isinstance(error.__cause__, (UnicodeDecodeError, RecursionError)):  # fastapi's error says nothing of it
        reason = "nested too deeply" if isinstance(error.__cause__, RecursionError) else error.__cause__
        error = RequestError(400, f"the body: not JSON: {reason}")
    if not isinstance(error, HTTPException):
        known = as_request_error(error)
        if known.status_code == 500:
            origin = traceback.extract_tb(error.__traceback__)[-1]
            # Without the message, which may have the text.
            logger.error(f"{request.url.path}: {type(error).__name__} at {origin.filename}:{origin.lineno}")
        error = known
    return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)
