"""examples/translate_with_ray.py: blocks of lines over actors give the translation of one process."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fairseq_plugins
from examples import translate_with_ray
from fairseq_plugins.api.service import MAX_SENTENCES
from fairseq_plugins.conversion.convert import convert
from tests.conversion.support import save_model
from tests.support import REPOSITORY

MODEL = REPOSITORY / "checkpoints" / "ua-gec"
LINES = (REPOSITORY / "examples" / "ua-gec" / "test.src").read_text(encoding="utf-8").splitlines()[:7]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A file with a blank line, a Unicode line separator, and no newline at the end."""
    path = tmp_path / "text"
    path.write_text("\n".join([*LINES[:3], "", "Він\u2028іде .", *LINES[3:]]), encoding="utf-8")
    return path


def expected(text: Path) -> str:
    lines = text.read_text(encoding="utf-8").split("\n")
    return "".join(f"{line}\n" for line in fairseq_plugins.load(MODEL).translate(lines))


def test_blocks_are_the_whole_file(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translate_with_ray, "LINES", 2)
    blocks = list(translate_with_ray.blocks(str(text)))
    assert len(blocks) == 5 and sum(block["size"] for block in blocks) == text.stat().st_size
    translator = translate_with_ray.Translator(str(MODEL), str(text))
    batch = {name: [block[name] for block in blocks] for name in ("begin", "size")}
    assert "".join(translator(batch)["text"]) == expected(text)


@pytest.mark.slow
def test_two_actors(text: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="pip install 'ray[data]' runs it")
    program = REPOSITORY / "examples" / "translate_with_ray.py"
    command = [sys.executable, program, MODEL, text, tmp_path / "out", "--actors", "2"]
    subprocess.run(command, check=True, timeout=300, cwd=tmp_path)
    assert (tmp_path / "out").read_text(encoding="utf-8") == expected(text)


SERVE = """
import json, sys, urllib.request
from ray import serve
from examples.serve.serve_with_ray import Arguments, app
serve.run(app(Arguments(folder=sys.argv[1], replicas=2, threads=1)))
body = json.dumps({"q": "People", "target": "de"}).encode()
request = urllib.request.Request("http://127.0.0.1:8000/translate", body, {"Content-Type": "application/json"})
print("answer:", json.load(urllib.request.urlopen(request, timeout=60))["translatedText"])
serve.shutdown()
"""


def test_a_replica_has_the_servers_interface() -> None:
    pytest.importorskip("fastapi", reason="pip install '.[serve]'")
    from examples.serve import serve_with_ray

    model = REPOSITORY / "checkpoints" / "multi30k.en-de"
    paths = serve_with_ray.application(str(model), threads=1).openapi()["paths"]
    assert {"/translate", "/v1/stream", "/ready"} <= paths.keys()
    with pytest.raises(RuntimeError, match="cannot be loaded"):
        serve_with_ray.application("/nonexistent", threads=1)


def test_replicas_get_what_serve_run_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many requests as the server itself admits, not Ray's five; the keys of the server; no misspelt argument."""
    pytest.importorskip("fastapi", reason="pip install '.[serve]'")
    from examples.serve import serve_with_ray

    given: dict[str, Any] = {}

    def deployment(**options: Any) -> Any:
        given.update(options)
        return lambda _: SimpleNamespace(bind=lambda: None)

    def ingress(build: Any) -> Any:
        given["build"] = build
        return lambda replica: replica

    monkeypatch.setitem(
        sys.modules, "ray", SimpleNamespace(serve=SimpleNamespace(deployment=deployment, ingress=ingress))
    )
    monkeypatch.setenv("SPEC_DEC_API_KEY", "one two")
    model = REPOSITORY / "checkpoints" / "multi30k.en-de"
    serve_with_ray.app(serve_with_ray.Arguments(folder=str(model), threads=1))
    assert given["max_ongoing_requests"] == MAX_SENTENCES and given["ray_actor_options"] == {"num_cpus": 1}
    assert given["build"]().state.server.settings.api_keys == {"one", "two"}
    with pytest.raises(ValueError, match="replica\n.*not permitted"):
        serve_with_ray.Arguments.model_validate({"folder": str(model), "replica": "2"})


def test_languages_of_a_multilingual_model(text: Path, tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="pip install '.[serve]'")
    from examples.serve import serve_with_ray

    save_model("nllb", tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "nllb")
    languages = ("eng_Latn", "deu_Latn")
    text.write_text("w7 w9\nw8", encoding="utf-8")
    translator = translate_with_ray.Translator(str(tmp_path / "nllb"), str(text), *languages)
    model = fairseq_plugins.load(tmp_path / "nllb", source_lang=languages[0], target_lang=languages[1])
    size = text.stat().st_size
    (translated,) = translator({"begin": [0], "size": [size]})["text"]
    assert translated == "".join(f"{line}\n" for line in model.translate(["w7 w9", "w8"])) and len(translated) > 4
    serve_with_ray.application(str(tmp_path / "nllb"), 1, languages)
    with pytest.raises(RuntimeError, match='target_lang="fra_Latn": unknown; this model is multilingual'):
        serve_with_ray.application(str(tmp_path / "nllb"), 1, ("eng_Latn", "fra_Latn"))


@pytest.mark.slow
def test_two_replicas() -> None:
    pytest.importorskip("ray.serve", reason="pip install 'ray[serve]' runs it")
    model = REPOSITORY / "checkpoints" / "multi30k.en-de"
    ran = subprocess.run(
        [sys.executable, "-c", SERVE, model], check=True, timeout=300, cwd=REPOSITORY, capture_output=True, text=True
    )
    assert f"answer: {fairseq_plugins.load(model).translate('People')}" in ran.stdout
