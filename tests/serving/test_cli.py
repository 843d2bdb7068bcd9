"""The command: models and languages, errors, and a process that ends as asked."""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch
from prometheus_client import generate_latest

from fairseq_plugins.errors import ConfigurationError, out_of_gpu_memory
from fairseq_plugins.process.output import unchanged_logging
from fairseq_plugins.serving import cli
from fairseq_plugins.serving.errors import RequestError
from fairseq_plugins.serving.metrics import Metrics
from fairseq_plugins.serving.models import Registry, ServedModel
from tests.serving.running import FOLDER, Client
from tests.support import REPOSITORY

SECRET = "A man is riding a bicycle."


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """The command logs each request, of the servers of later tests too, to a stream that pytest closes."""
    loggers = [logging.getLogger(name) for name in (cli.NAME, "uvicorn.error")]
    levels = [logger.level for logger in loggers]
    with unchanged_logging():
        yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


def test_models_of_a_command_line() -> None:
    arguments = ["a/b.en-de", "uk-uk=c", "--set", "max-len-b=9", "--decoder", "greedy", "--beam", "9", "--threads", "3"]
    first, second = cli.make_models(cli.get_parser().parse_args(arguments))
    assert (first.folder, first.languages, first.beam, first.max_beam, first.threads) == ("a/b.en-de", None, 9, 9, 3)
    assert (second.folder, second.languages) == ("c", ("uk", "uk"))
    assert first.options == {"max_len_b": "9", "decoder": "greedy"}
    for wrong in (["en=folder"], ["x", "--set", "max_len_b"]):
        with pytest.raises(ConfigurationError, match="give"):
            cli.make_models(cli.get_parser().parse_args(wrong))


def test_languages_with_a_hyphen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several hyphens do not say where the source ends; dictionaries or a colon do."""
    monkeypatch.chdir(tmp_path)
    for language in ("pt-BR", "en"):
        (tmp_path / f"dict.{language}.txt").touch()
    given = ["pt-BR-en=.", "en-pt-BR=.", "pt-BR:en=none", "en:en=none"]
    models = cli.make_models(cli.get_parser().parse_args(given))
    assert [model.languages for model in models] == [("pt-BR", "en"), ("en", "pt-BR"), ("pt-BR", "en"), ("en", "en")]
    for wrong in ("pt-BR-en=none", "pt-BR-de=.", "a:b:c=.", ":en=."):
        with pytest.raises(ConfigurationError, match="give SOURCE-TARGET=FOLDER, such as en-de=.*, or pt-BR:en="):
            cli.make_models(cli.get_parser().parse_args([wrong]))


def test_languages_are_the_models_or_the_given_ones(tmp_path: Path) -> None:
    options = {"decoder": "greedy"}
    own, named = ServedModel(str(FOLDER), None, options), ServedModel(str(FOLDER), ("x", "y"), options)
    also = ServedModel("none", ("z", "y"))
    for model in (own, named, also):
        model.load()
    assert own.languages == ("en", "de") and named.languages == ("x", "y")
    registry = Registry([own, named, also])
    assert registry.find("en", "de") is own and registry.find(None, "de") is own and registry.find("x", "y") is named
    for source, target, message in (("auto", "y", "several models"), ("en", "y", "en is not"), ("en", "q", "q is not")):
        with pytest.raises(RequestError, match=message):
            registry.find(source, target)
    twin = ServedModel(str(FOLDER), ("x", "y"), options)
    both = Registry([twin, named])
    twin.state = "broken"  # as for want of memory
    assert both.named() == {"x-y": named, "x-y (2)": twin}
    lines = generate_latest(Metrics(both).collectors).decode().splitlines()
    assert len({line.partition("}")[0] for line in lines if "{" in line}) == 4, "a line is double"
    twin.state = "loading"
    both = Registry([named, twin])
    both.load()
    assert both.find("x", "y") is named and twin.state == "broken" and "has the languages of" in twin.problem
    broken = ServedModel("none.x-y")
    either = Registry([broken, ServedModel(str(FOLDER), ("x", "y"), options)])
    either.load()
    assert broken.languages == ("x", "y") and either.find("x", "y").state == "ready"
    (tmp_path / "load.json").write_text('{"languages": {"en": "__en__", "de": "__de__"}, "options": {}}')
    (tmp_path / "verifier.pt").touch()
    multilingual = ServedModel(str(tmp_path), ("en", "fr"), options)
    multilingual.load()
    assert 'target_lang="fr": unknown; this model is multilingual: give one of its 2 lang' in multilingual.problem
    for model in (own, named, *either.models):
        model.close()
    with pytest.raises(RequestError, match="is closed"):
        _ = own.model


def test_languages_that_a_folder_does_not_tell(tmp_path: Path) -> None:
    """The server has no --source-lang."""
    for file in FOLDER.iterdir():
        if file.name != "SHA256SUMS":
            (tmp_path / file.name).symlink_to(file)
    unknown, named = ServedModel(str(tmp_path)), ServedModel(str(tmp_path), ("en", "de"))
    unknown.load()
    assert unknown.problem.endswith("does not say which of de, en is the source; give SOURCE-TARGET=" + tmp_path.name)
    named.load()
    assert named.state == "ready"
    named.close()


def test_wrong_arguments_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["en=folder"]) == 2
    remedy = "give SOURCE-TARGET=FOLDER, such as en-de=folder, or pt-BR:en=folder"
    assert capsys.readouterr().err.strip().endswith(f"MODEL en=folder: {remedy}")
    assert cli.main(["nothing.en-de"]) == 2
    assert "folder nothing.en-de: no such folder; give one" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert cli.main([str(FOLDER), "--port", str(port)]) == 2
    assert f"--port {port}: 127.0.0.1 cannot be listened at (Address already in use)" in capsys.readouterr().err
    assert cli.main([str(FOLDER), "--port", "70000"]) == 2
    assert cli.main([str(FOLDER), "--threads", "100000"]) == 2
    assert "error: --threads 100000: give a whole number of at most 1024" in capsys.readouterr().err
    assert cli.main([str(FOLDER), "--int8"]) == 2
    assert "--int8: no such option; give --set int8=VALUE (see spec-dec-serve --help)" in capsys.readouterr().err


def test_a_signal_that_the_shell_has_it_ignore_ends_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    """As SIGINT of a command with & in a script."""
    port = free_port()

    def interrupt() -> None:
        Client(port).wait_until(lambda: is_ready(port))
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        threading.Thread(target=interrupt, daemon=True).start()
        assert cli.main([str(FOLDER), "--port", str(port), "--threads", "1"]) == 0
    finally:
        signal.signal(signal.SIGINT, before)
    assert "cannot be loaded" not in capsys.readouterr().err


def is_ready(port: int) -> bool:
    try:
        return Client(port).ask("GET", "/ready")[0] == 200
    except OSError:
        return False


def test_a_server_without_any_model_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([str(tmp_path), "--port", str(free_port())]) == 2
    log = capsys.readouterr().err.splitlines()
    assert any("ERROR model" in line for line in log)
    assert log[-1] == f"spec-dec-serve: error: MODEL {tmp_path}: cannot be loaded; see the errors above"


def test_a_server_whose_models_may_load_later_has_another_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd starts it again, except after the status that its unit names: that of models that are wrong."""
    unit = (REPOSITORY / "examples" / "serve" / "spec-dec-serve.service").read_text()
    assert "RestartPreventExitStatus=2\n" in unit
    wrong, gpu = ConfigurationError("--path", "x", "wrong"), out_of_gpu_memory(torch.OutOfMemoryError("full"), "wait")
    for error, is_wrong in ((wrong, True), (gpu, False), (MemoryError(), False), (KeyError("a crash"), False)):
        monkeypatch.setattr("fairseq_plugins.serving.models.load", mock.Mock(side_effect=error))
        model = ServedModel(str(FOLDER))
        model.load()
        assert (model.state, model.is_wrong) == ("broken", is_wrong)
    monkeypatch.setattr("fairseq_plugins.serving.models.load", mock.Mock(side_effect=[wrong, gpu]))
    with pytest.raises(SystemExit, match="^1$"):
        cli.main([str(FOLDER), str(FOLDER), "--port", str(free_port())])
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"spec-dec-serve: error: MODEL {FOLDER} {FOLDER}: cannot be loaded; see the errors above"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@pytest.mark.parametrize(
    ("number", "statuses"),
    [(signal.SIGTERM, (0, -signal.SIGTERM, 128 + signal.SIGTERM)), (signal.SIGUSR1, (128 + signal.SIGUSR1,))],
)
def test_a_process_finishes_what_runs_and_ends(
    number: signal.Signals, statuses: tuple[int, ...], tmp_path: Path
) -> None:
    port, log = free_port(), tmp_path / "log"
    command = [sys.executable, "-m", "fairseq_plugins.serving.cli", str(FOLDER), "--port", str(port), "--grace", "1000"]
    with open(log, "w") as file, subprocess.Popen(command, stderr=file, stdout=file, cwd=REPOSITORY) as process:
        try:
            client = Client(port)

            def is_ready() -> bool:
                assert process.poll() is None
                try:
                    return client.ask("GET", "/ready")[0] == 200
                except OSError:
                    return False

            client.wait_until(is_ready)
            answers = []
            asked = {"text": f"{SECRET} " * 20, "target": "de", "options": {"min_len": 100}}
            thread = threading.Thread(target=lambda: answers.append(client.ask("POST", "/v1/translate", asked)))
            thread.start()
            client.wait_until(lambda: 'unfinished_sentences{model="en-de"} 0' not in client.get("/metrics") or answers)
            process.send_signal(number)
            thread.join(200)
            assert answers[0][0] == 200 and len(answers[0][2]["translations"][0]["sentences"]) == 20
            assert process.wait(200) in statuses  # not after the whole grace
        finally:
            process.kill()
    text = log.read_text()
    assert "continuous batches" in text and "POST /v1/translate 200" in text and "bicycle" not in text
    assert "Traceback" not in text and "leaked" not in text
