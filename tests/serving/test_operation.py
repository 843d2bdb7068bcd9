"""Keys, limits, faults, clients that leave, and the log."""

import asyncio
import json
import logging
import re
import signal
import socket
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from fairseq_plugins.api import Model, service
from fairseq_plugins.api.loading import with_decoder
from fairseq_plugins.serving import models, process
from fairseq_plugins.serving.app import make_app
from fairseq_plugins.serving.errors import RequestError
from fairseq_plugins.serving.models import ServedModel
from fairseq_plugins.serving.settings import Settings
from fairseq_plugins.serving.text import TextJob
from tests.serving.running import FOLDER, Client, request, serving

SECRET = "A man is riding a bicycle."
# A translation that takes seconds.
LONG: dict[str, Any] = {
    "text": "Two dogs play in the snow. " * 8,
    "target": "de",
    "options": {"min_len": 1000, "max_len_b": 1000},
    "tokens": True,
}


def test_health_readiness_and_metrics(client: Client) -> None:
    assert client.get("/health") == {"status": "ok"}
    status, _, answer = client.ask("GET", "/ready")
    states = {name: model["state"] for name, model in answer["models"].items()}
    assert status == 503 and not answer["ready"] and states == {"en-de": "ready", "en-fr": "broken"}

    def sentences() -> float:
        lines = client.get("/metrics").splitlines()
        (line,) = [line for line in lines if line.startswith('spec_dec_sentences_total{model="en-de"}')] or ["x 0"]
        return float(line.split()[-1])

    before = sentences()
    client.post("/translate", {"q": "People. Dogs.", "target": "de"})
    assert sentences() == before + 2
    metrics = client.get("/metrics")
    assert 'spec_dec_model_ready{model="en-fr"} 0.0' in metrics and 'model="-"' not in metrics


def test_head_answers_as_get(client: Client) -> None:
    """Some balancers check with it."""
    for path in ("/health", "/ready", "/", "/translate", "/none"):
        status, headers, body = client.ask("HEAD", path)
        expected, *_ = answer = client.ask("GET", path)
        assert (status, headers.get("content-length")) == (expected, answer[1].get("content-length")) and not body


def test_a_body_that_is_too_long_is_an_error_in_json(client: Client) -> None:
    status, _, answer = client.ask("POST", "/translate", b"a" * 200_000)
    message = "the body has 200000 bytes, and may have 161536; send less at a time"
    assert (status, answer) == (413, {"error": message})
    status, _, answer = client.ask("POST", "/translate", iter([b"a" * 100_000] * 2))  # in chunks, without a length
    assert status == 413 and re.fullmatch(
        r"the body has at least [12]\d{5} bytes, and may have 161536; .*", answer["error"]
    )
    chunks = iter([b'{"q": "People", ', b'"target": "de"}'])
    status, _, answer = client.ask("POST", "/translate", chunks, Content_Type="application/json")
    assert status == 200 and answer["translatedText"]


def test_sites_of_allowed_origins_only(client: Client) -> None:
    asked = {"q": "People", "target": "de"}
    for origin, is_allowed in (("https://example.org", True), ("https://other.org", False)):
        _, headers, _ = client.ask("POST", "/translate", asked, Origin=origin)
        assert (headers.get("access-control-allow-origin") == origin) == is_allowed


def test_a_line_of_log_for_each_request_without_its_text(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="spec-dec-serve")
    client.post("/translate", {"q": SECRET, "target": "de"})
    client.ask("POST", "/translate", {"q": SECRET, "target": "ru"})
    client.ask("GET", "/translate%0aforged")
    client.wait_until(lambda: "forged" in caplog.text)
    *_, first, second, third = (record.getMessage() for record in caplog.records)  # of earlier tests, too
    assert "POST /translate 200" in first and "model=en-de sentences=1 tokens=" in first
    assert "POST /translate 400" in second and r"GET /translate\nforged 404" in third
    assert not any("bicycle" in line or "Fahrrad" in line for line in (first, second, third))


def test_an_error_inside_is_500_and_harms_nobody(
    client: Client, served: ServedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> Any:
        raise KeyError(SECRET)

    with monkeypatch.context() as patch:
        patch.setattr(served, "service", fails)
        status, _, answer = client.ask("POST", "/translate", {"q": SECRET, "target": "de"})
        kind, data = client.events({"text": SECRET, "target": "de"})[-1]
    assert status == 500 and answer == {"error": "internal error; the server's log has its place"}
    assert kind == "error" and data == answer
    assert "KeyError at" in caplog.text and SECRET not in caplog.text
    assert client.post("/translate", {"q": SECRET, "target": "de"})["translatedText"]


@pytest.mark.parametrize("path", ["/v1/translate", "/v1/stream"])
def test_clients_that_leave_or_read_slowly_hold_up_nobody(client: Client, served: ServedModel, path: str) -> None:
    """The sentences of one that has left are dropped."""
    connection = client.send(path, LONG)
    client.wait_until(lambda: served.sentences == 8)
    assert client.post("/translate", {"q": SECRET, "target": "de"})["translatedText"]
    connection.close()
    client.wait_until(lambda: served.sentences == 0)


def test_a_client_that_leaves_amid_its_request_is_no_error(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="spec-dec-serve")
    connection = socket.create_connection(("127.0.0.1", client.port), timeout=60)
    connection.sendall(b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
    connection.close()
    client.wait_until(lambda: caplog.records)
    assert "POST /translate 499" in caplog.text and "ERROR" not in caplog.text


def test_a_client_that_leaves_while_events_wait_is_no_error(
    client: Client, served: ServedModel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="spec-dec-serve")
    body = json.dumps({"text": SECRET, "target": "de", "options": {"min_len": 20}}).encode()
    scope = {"type": "http", "method": "POST", "path": "/v1/stream", "query_string": b"", "http_version": "1.1"}
    scope["headers"] = [(b"content-type", b"application/json")]

    async def stream() -> None:
        left = asyncio.Event()
        messages = [{"type": "http.request", "body": body}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message.get("body"):
                await asyncio.sleep(0.2)
                while served.sentences:  # until all its events are there
                    await asyncio.sleep(0.01)
                left.set()
                await asyncio.sleep(60)

        await asyncio.wait_for(make_app([served], Settings())(scope, receive, send), 50)

    asyncio.run(stream())
    assert "POST /v1/stream 200" in caplog.text and caplog.text.rstrip().endswith("client left")


def test_a_full_server_refuses_at_once(client: Client, served: ServedModel) -> None:
    beams = {"text": SECRET, "target": "de", "options": {"beam": 2}}  # decoded in another batch
    client.post("/v1/translate", beams)
    held = client.send("/v1/translate", {**LONG, "text": 2 * LONG["text"]})
    client.wait_until(lambda: served.sentences == 16)
    status, headers, answer = client.ask("POST", "/translate", {"q": SECRET, "target": "de"})
    assert served.sentences == 16
    assert (status, headers["retry-after"]) == (503, "1") and "is busy; try again later" in answer["error"]
    assert client.ask("POST", "/v1/translate", beams)[0] == 503
    assert client.get("/health") == {"status": "ok"}
    held.close()
    client.wait_until(lambda: served.sentences == 0)
    assert client.post("/translate", {"q": SECRET, "target": "de"})["translatedText"]


def test_of_a_request_with_a_wrong_sentence_none_is_decoded(client: Client, served: ServedModel) -> None:
    status, _, answer = client.ask("POST", "/v1/translate", {**LONG, "text": [SECRET, "a " * 1500]})
    assert status == 400 and answer["error"].endswith("the model reads at most 1024; split it")
    assert served.sentences == 0


def test_making_a_service_of_another_way_holds_up_nobody(served: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop asks for the service of each request."""
    own, begun, may_end = ServedModel(str(FOLDER), threads=1), threading.Event(), threading.Event()
    ended: list[bool] = []
    own.load()

    def slow(model: Model, decoder: str) -> Model:
        begun.set()
        ended.append(may_end.wait(60))
        return with_decoder(model, decoder)

    monkeypatch.setattr(models, "with_decoder", slow)
    thread = threading.Thread(target=own.service, args=["beams"])
    thread.start()
    begun.wait()
    assert own.service("default").engine
    may_end.set()
    thread.join()
    assert ended == [True], "it was held up until the wait ran out"
    assert own.decoder("beams") == "fast-beam"
    own.close()


@pytest.mark.parametrize("drafts", [[], ["x"]])
def test_a_batch_after_one_that_failed_begins_beside_the_event_loop(
    drafts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a request with drafts, the service of sentences that have none may have failed."""
    own, begun, may_end = ServedModel(str(FOLDER), threads=1), threading.Event(), threading.Event()
    own.load()
    make, ended = service.ContinuousEngine, []
    job = TextJob(own, drafts=drafts)
    own.service(job.way)
    failed = own.service("default")._engines[0]

    def fail(seconds: float) -> None:
        raise MemoryError

    def slow(*arguments: Any) -> Any:
        begun.set()
        ended.append(may_end.wait(60))
        return make(*arguments)

    monkeypatch.setattr(failed._backend, "take", fail)  # type: ignore[union-attr]
    monkeypatch.setattr(service, "ContinuousEngine", slow)

    async def serve() -> str:
        while not failed.is_closed:
            await asyncio.sleep(0.01)
        work = asyncio.ensure_future(job.translate(job.cut(["Dogs.\nPeople.\nA man."])))
        while not begun.is_set():
            await asyncio.sleep(0.01)
        may_end.set()
        return (await work)[0].text

    text = asyncio.run(serve())
    assert ended == [True], "the loop was held up until the wait ran out"
    assert text == "\n".join(own.model.translate(["Dogs.", "People.", "A man."]))
    own.close()


def test_a_batch_that_fails_while_a_sentence_is_read_is_made_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, makers = ServedModel(str(FOLDER), threads=1), []
    own.load()
    failed = own.service("default")._engines[0]
    make, encode = service.ContinuousEngine, own.model._encode

    def made(*arguments: Any) -> Any:
        makers.append(threading.current_thread())
        return make(*arguments)

    def late(text: str, name: str) -> Any:
        failed.close()
        return encode(text, name)

    monkeypatch.setattr(service, "ContinuousEngine", made)
    monkeypatch.setattr(own.model, "_encode", late)
    job = TextJob(own)
    text = asyncio.run(job.translate(job.cut(["Dogs.\nPeople."])))[0].text
    assert len(makers) == 1 and makers[0] is not threading.current_thread()
    assert text == "\n".join(own.model.translate(["Dogs.", "People."]))
    own.close()


@pytest.mark.usefixtures("client")
def test_others_have_their_turn_while_many_sentences_are_read(
    served: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading 450 of them takes a fifth of a second, and seconds where all processors are busy."""
    encode, read, seen = served.model._encode, [], set()
    monkeypatch.setattr(served.model, "_encode", lambda text, name: read.append(text) or encode(text, name))
    job = TextJob(served)

    async def serve() -> None:
        work = asyncio.ensure_future(job.translate(job.cut(["Dogs.\n" * 8])))
        while not work.done():
            seen.add(len(read))
            await asyncio.sleep(0)
        await work

    asyncio.run(serve())
    assert seen > set(range(1, 9)) and served.sentences == 0


@pytest.mark.usefixtures("client")
def test_requests_that_join_together_are_within_the_limit(served: ServedModel) -> None:
    """A request that fits keeps its room while another one begins."""
    job = TextJob(served, LONG["options"])

    async def serve() -> list[Any]:
        works = [asyncio.ensure_future(job.translate(job.cut(["Dogs.\n" * 9]))) for _ in range(2)]
        await asyncio.wait(works, timeout=0.2)
        works[0].cancel()
        return await asyncio.gather(*works, return_exceptions=True)

    first, second = asyncio.run(serve())
    assert isinstance(first, asyncio.CancelledError) and isinstance(second, service.ServiceFull)


def test_keys(served: ServedModel) -> None:
    own = ServedModel(str(FOLDER), ("x", "y"), threads=1, max_waiting=8)
    with serving([own], Settings(api_keys=frozenset(["key", "other"]))) as client:
        asked = {"q": SECRET, "target": "y"}
        assert client.ask("POST", "/translate", asked)[0] == 401
        assert client.ask("POST", "/translate", {**asked, "api_key": "wrong"})[0] == 403
        for key, status in ((None, 401), ("wrong", 403), ("\ud800", 403)):
            assert client.ask("POST", "/v1/translate", {"text": SECRET, "target": "y", "api_key": key})[0] == status
        text = served.model.translate(SECRET)
        assert client.post("/translate", {**asked, "api_key": "other"})["translatedText"] == text
        assert client.post("/translate", asked, Authorization="Bearer key")["translatedText"] == text
        assert client.get("/frontend/settings")["keyRequired"] and client.get("/ready")["ready"]


def test_requests_that_take_too_long_are_dropped() -> None:
    own = ServedModel(str(FOLDER), threads=1)
    with serving([own], Settings(timeout=0.1)) as client:
        status, _, answer = client.ask("POST", "/v1/translate", LONG)
        assert status == 504 and "takes too long" in answer["error"]
        kind, data = client.events(LONG)[-1]
        assert kind == "error" and "takes too long" in data["error"]
        client.wait_until(lambda: own.sentences == 0)


def test_a_stream_that_is_read_slowly_has_its_end(client: Client, served: ServedModel) -> None:
    """The time limit is that of the translation."""
    app, parts = make_app([served], Settings(timeout=0.5)), []
    asked = json.dumps({"text": SECRET, "target": "de", "options": {"min_len": 45}}).encode()
    received = iter([{"type": "http.request", "body": asked}])

    async def receive() -> Any:
        return next(received, None) or await asyncio.sleep(60)

    async def send(message: Any) -> None:
        await asyncio.sleep(0.02)
        parts.append(message.get("body", b""))

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/stream", "query_string": b"", "headers": headers}
    asyncio.run(app({**scope, "http_version": "1.1", "scheme": "http"}, receive, send))
    assert len(parts) > 25 and b"event: end" in b"".join(parts)


def test_requests_during_loading_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    may_load = threading.Event()
    own = ServedModel(str(FOLDER), threads=1)
    load = own.load

    def waits() -> None:
        may_load.wait()
        load()

    monkeypatch.setattr(own, "load", waits)
    own.state = "ready"  # for `serving` only
    with serving([own], Settings()) as client:
        own.state = "loading"
        status, headers, answer = client.ask("POST", "/translate", {"q": SECRET, "source": "en", "target": "de"})
        assert status == 503 and headers["retry-after"] == "2" and "is loading" in answer["error"]
        assert client.ask("GET", "/ready")[0] == 503
        may_load.set()
        client.wait_until(lambda: own.state == "ready")
        assert client.post("/translate", {"q": SECRET, "source": "en", "target": "de"})["translatedText"]
        held = client.send("/v1/translate", {**LONG, "target": "de"})
        client.wait_until(lambda: own.sentences > 0)
    # The server has waited 0.3 seconds, and then dropped the sentences.
    answer = held.recv(1000)
    assert b" 503 " in answer and b"shutting down" in answer + held.recv(1000)


def test_a_request_that_does_not_come_whole_ends_with_the_server(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process, "_TO_ANSWER", 0.2)
    caplog.set_level(logging.INFO)
    own = ServedModel(str(FOLDER), threads=1)
    with serving([own], Settings()) as client:
        half = socket.create_connection(("127.0.0.1", client.port), timeout=60)
        half.sendall(request("/v1/translate", b"{" * 100)[:-50])
        client.get("/health")  # after which it has begun
    answer = half.recv(1000)
    assert b" 503 " in answer and b"shutting down" in answer + half.recv(1000)
    assert "POST /v1/translate 503" in caplog.text and "Traceback" not in caplog.text


def test_a_server_that_ends_while_a_service_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ServedModel(str(FOLDER), threads=1)
    own.load()

    def ends(self: service.Service) -> bool:
        own.close()
        return False

    monkeypatch.setattr(service.Service, "has_failed", property(ends))
    with pytest.raises(service.ServiceClosed):
        own.service("default").submit(SECRET)


def test_a_server_that_ends_while_a_model_is_looked_up() -> None:
    own = ServedModel(str(FOLDER), threads=1)
    own.load()

    class Ends(dict[models.Way, Model]):
        def get(self, way: models.Way, default: Any = None) -> Any:
            own.close()
            return super().get(way, default)

        def __getitem__(self, way: models.Way) -> Model:
            own.close()
            return super().__getitem__(way)

    own._models = Ends(own._models)
    with pytest.raises(RequestError, match="the model en-de is closed"):
        _ = own.model


def test_a_server_that_ends_while_a_model_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ServedModel(str(FOLDER), threads=1)
    monkeypatch.setattr(service.Service, "submit", lambda *_, **__: SimpleNamespace(result=own.close))
    own.load()
    assert own.state == "broken" and own.problem == "is closed"


def test_a_second_interrupt_drops_what_runs() -> None:
    own = ServedModel(str(FOLDER), threads=1)
    with serving([own], Settings(), grace=1000) as client:
        held = client.send("/v1/translate", LONG)
        client.wait_until(lambda: own.sentences == 8)
        assert client.server is not None
        for _ in range(2):
            client.server.handle_exit(signal.SIGINT, None)
        answer = held.recv(1000)
        assert b" 503 " in answer and b"shutting down" in answer + held.recv(1000)
