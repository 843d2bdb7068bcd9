"""Sessions of commands: precision of models, unchanged options, prefixes, text."""

import sys

import fairseq.utils
import pytest
import torch

from fairseq_plugins.checkpoint.session import TaskSession, precision
from fairseq_plugins.shared.parsing import as_config, generation_parser, parse_arguments
from tests.conftest import Corpus
from tests.errors import error_about


def open_session(corpus: Corpus, *more: str) -> TaskSession:
    arguments = [str(corpus.data), "--path", str(corpus.verifier), "--cpu", *more]
    return TaskSession(as_config(parse_arguments(generation_parser("test"), arguments)))


@pytest.mark.parametrize(
    ("options", "name", "dtype"),
    [([], "fp32", torch.float32), (["--fp16"], "fp16", torch.float16), (["--bf16"], "bf16", torch.bfloat16)],
)
def test_models_get_the_wanted_precision(corpus: Corpus, options: list[str], name: str, dtype: torch.dtype) -> None:
    session = open_session(corpus, *options)
    assert precision(session.cfg) == name
    assert {parameter.dtype for model in session.models for parameter in model.parameters()} == {dtype}
    assert not any(model.training for model in session.models)


@pytest.mark.parametrize("option", ["--score-reference", "--constraints"])
def test_options_of_fairseqs_tools_alone_are_refused(corpus: Corpus, option: str) -> None:
    """spec-dec-distill took references for translations."""
    with error_about(option, "is not for this command"):
        open_session(corpus, option)


def test_models_and_batches_are_on_the_gpu_of_the_beginning(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is that of a thread, and of the last model that was loaded."""
    current, moved = [1], []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    monkeypatch.setattr(torch.nn.Module, "cuda", lambda module, device=None: moved.append(device))
    monkeypatch.setattr(fairseq.utils, "move_to_cuda", lambda sample, device=None: moved.append(device))
    arguments = [str(corpus.data), "--path", str(corpus.verifier)]
    session = TaskSession(as_config(parse_arguments(generation_parser("test"), arguments)))
    current[0] = 0
    assert len(session.models) == 1
    session.batch(session.load("test"), [0])
    assert moved == [torch.device("cuda:1")] * 2


@pytest.mark.parametrize(("program", "changed"), [("mine.py", []), ("spec-dec-distill", ["cuda:1"])])
def test_a_program_keeps_its_current_gpu(
    program: str, changed: list[str], corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands change it: nothing of their processes is on another GPU."""
    devices: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    monkeypatch.setattr(sys, "argv", [program])
    arguments = [str(corpus.data), "--path", str(corpus.verifier)]
    session = TaskSession(as_config(parse_arguments(generation_parser("test"), arguments)), 1)
    assert session.device == torch.device("cuda:1") and list(map(str, devices)) == changed


def test_a_generator_leaves_the_options_as_they_were(corpus: Corpus) -> None:
    session = open_session(corpus, "--decoder", "greedy", "--beam", "3")
    session.generator()  # sets the beam of its options to 1
    assert session.cfg.generation.beam == 3
    assert session.generation(beam=2, nbest=1).beam == 2 and session.cfg.generation.beam == 3


@pytest.mark.parametrize(("options", "text"), [(["--remove-bpe"], "halo du"), ([], "ha@@ lo du")])
def test_text_without_subwords(corpus: Corpus, options: list[str], text: str) -> None:
    session = open_session(corpus, *options)
    dictionary = session.task.target_dictionary
    assert session.stripped == {dictionary.eos()}  # needs the models, which do not fit a larger dictionary
    assert session.text([dictionary.add_symbol(symbol) for symbol in ("ha@@", "lo", "du")]) == text


@pytest.mark.parametrize(
    ("symbol", "options", "kind"),
    [
        ("\u2581ha", [], "sentencepiece"),
        ("ha@@", [], "subword_nmt"),
        ("ha", [], None),
        ("\u2581ha", ["--remove-bpe"], "subword_nmt"),
    ],
)
def test_subwords_are_joined_without_being_asked(
    corpus: Corpus, capsys: pytest.CaptureFixture[str], symbol: str, options: list[str], kind: str | None
) -> None:
    session = open_session(corpus, *options)
    session.task.target_dictionary.add_symbol(symbol)
    session.join_subwords()
    assert session.cfg.common_eval.post_process == kind
    assert ("--remove-bpe: not given" in capsys.readouterr().err) == (kind is not None and not options)
