"""LibreTranslate's interface, and its clients."""

import threading
import time
from typing import Any

import pytest
from bs4 import BeautifulSoup

from fairseq_plugins.api import Model
from fairseq_plugins.serving.models import ServedModel
from fairseq_plugins.serving.text import TextJob, _pieces
from tests.serving.running import Client

TEXT = "A man is riding a bicycle.\n\nTwo dogs play in the snow. People watch them.\n"


@pytest.fixture
def model(client: Client, served: ServedModel) -> Model:
    return served.model


@pytest.mark.parametrize("as_form", [False, True])
def test_text_is_cut_into_sentences_and_keeps_its_line_breaks(client: Client, model: Model, as_form: bool) -> None:
    asked = {"q": TEXT, "source": "en", "target": "de", "format": "text"}
    answer = client.post("/translate", form=asked) if as_form else client.post("/translate", asked)
    sentences = ["A man is riding a bicycle.", "Two dogs play in the snow.", "People watch them."]
    first, second, third = model.translate(sentences)
    assert answer == {"translatedText": f"{first}\n\n{second} {third}\n"}


def test_form_as_curl_sends_it(client: Client, model: Model) -> None:
    """`curl -d` leaves all characters as they are, in UTF-8."""
    form: dict[str, Any] = {"Content_Type": "application/x-www-form-urlencoded"}
    text = "Männer über Straße."
    assert model.translate(text) != model.translate(text.encode().decode("latin-1"))
    answer = client.post("/translate", f"q={text}&source=en&target=de".encode(), **form)
    assert answer == {"translatedText": model.translate(text)}
    status, _, refused = client.ask("POST", "/translate", "q=café&target=de".encode("latin-1"), **form)
    assert status == 400 and refused["error"].startswith("the form is not UTF-8: ")


def test_several_texts_languages_and_alternatives(client: Client, model: Model) -> None:
    texts = ["A man is riding a bicycle.", "", "Two dogs play in the snow."]
    answer = client.post("/translate", {"q": texts, "target": "de", "alternatives": 2})
    assert [len(some) for some in answer["alternatives"]] == [2, 0, 2]
    assert answer["detectedLanguage"] == [{"confidence": 0, "language": "en"}] * 3
    assert answer["translatedText"][1] == "" and len(set(answer["translatedText"])) == 3
    greedy = client.post("/translate", {"q": texts, "source": "auto", "target": "de"})
    assert greedy["translatedText"] == model.translate(texts)
    assert client.get("/languages") == [
        {"code": "de", "name": "German", "targets": []},
        {"code": "en", "name": "English", "targets": ["de"]},
    ]
    assert client.ask("POST", "/detect", form={"q": "Hallo"})[0] == 501
    settings = client.get("/frontend/settings")
    assert settings["language"]["source"] == {"code": "en", "name": "English"} and settings["charLimit"] == 4000


def test_html_keeps_tags_and_code(client: Client, model: Model) -> None:
    html = '<p class="x">A man is riding a bicycle.<br/>People</p><!-- People --><pre>People</pre>&amp;'
    man, people = model.translate(["A man is riding a bicycle.", "People"])
    answer = client.post("/translate", {"q": html, "source": "en", "target": "de", "format": "html"})
    expected = f'<p class="x">{man}<br/>{people}</p><!-- People --><pre>People</pre>'
    assert answer["translatedText"].startswith(expected)


def test_parsing_html_holds_up_nobody(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    read, may_end = TextJob._read_html, threading.Event()

    def slow(self: TextJob, texts: list[str]) -> Any:
        assert may_end.wait(60)
        return read(self, texts)

    monkeypatch.setattr(TextJob, "_read_html", slow)
    held = client.send("/translate", {"q": "<a b='", "target": "de", "format": "html"})
    assert client.get("/health")
    may_end.set()
    assert b" 200 " in held.recv(1000)


def test_deeply_nested_html_holds_up_nobody() -> None:
    """The event loop does this: a second, if each piece looked at all the tags around it."""
    soup = BeautifulSoup("<b>a" * 5000, "html.parser")
    began = time.process_time()
    assert len(list(_pieces(soup))) == 5000 and time.process_time() - began < 0.3


@pytest.mark.parametrize(
    ("asked", "status", "message"),
    [
        ({"target": "de"}, 400, "missing q parameter"),
        ({"q": "x"}, 400, "missing target parameter"),
        ({"q": "x", "target": "ru"}, 400, "ru is not supported; this server has en-de"),
        ({"q": "x", "source": "en", "target": "fr"}, 503, "broken.en-fr: no such folder"),
        ({"q": "x", "target": "de", "format": "pdf"}, 400, "format: Input should be"),
        ({"q": "x", "target": "de", "alternatives": 99}, 400, "at most 7"),
        ({"q": "x " * 2001, "target": "de"}, 400, "has 4002 characters, and may have 4000"),
        ({"q": "Yes. " * 17, "target": "de"}, 400, "has 17 sentences, and may have 16"),
        ({"q": [""] * 17, "target": "de"}, 400, "has 17 texts, and may have 16"),
        ({"q": "word " * 700, "target": "de"}, 400, "split it"),
        ([1], 400, "no JSON object"),
        (b"{", 400, "no JSON object: Input data was truncated"),
        (b"\xff", 400, "no JSON object"),
        (rb'{"q": "a \ud800 b", "target": "de"}', 400, "no JSON object"),
        (b'{"q": ' + b"[" * 9000, 400, "no JSON object"),
        (b'{"q": "x", "target": "de", "alternatives": ' + b"9" * 5000 + b"}", 400, "no JSON object"),
        ({"q": "x" * 10**6, "target": "de"}, 413, ""),
    ],
)
def test_wrong_requests(client: Client, asked: Any, status: int, message: str) -> None:
    found, _, answer = client.ask("POST", "/translate", asked)
    assert found == status and message in (answer["error"] if isinstance(answer, dict) else answer)
    assert client.post("/translate", {"q": "People", "target": "de"})["translatedText"]


def test_libretranslates_own_client(client: Client, model: Model) -> None:
    library = pytest.importorskip("libretranslatepy", reason="pip install libretranslatepy")
    api = library.LibreTranslateAPI(client.url)
    assert api.translate("People watch two dogs.", "en", "de") == model.translate("People watch two dogs.")
    assert [language["code"] for language in api.languages()] == ["de", "en"]
