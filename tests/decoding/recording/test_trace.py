"""Traces: every output token with its origin and reason."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_plugins.decoding import methods
from fairseq_plugins.decoding.method import Method
from fairseq_plugins.decoding.recording.trace import Trace, read_trace
from fairseq_plugins.decoding.recording.trace_writer import TraceWriter, check_traceable
from fairseq_plugins.decoding.reference.drafters import Drafter
from fairseq_plugins.decoding.reference.drafters.nat import NatDrafter
from fairseq_plugins.decoding.reference.drafters.path import DraftOptions
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.decoding.reference.search import GreedySearch
from fairseq_plugins.decoding.reference.search.rules import accept_all
from fairseq_plugins.decoding.reference.state import DecodingState, Draft
from fairseq_plugins.decoding.reference.verifier import DrafterIsVerifier
from fairseq_plugins.errors import ConfigurationError
from tests.decoding.test_accepted_drafts import known
from tests.errors import refused
from tests.support import (
    Options,
    ScriptedDrafter,
    always_right,
    always_wrong,
    fairseq_greedy,
    ids,
    make_drafter,
    make_generator,
    make_sample,
    make_task,
    make_transformer,
    right_then_wrong,
    scores,
)

LENGTHS = [3, 9, 0, 6]
EOS = 2


@pytest.fixture(scope="module")
def task() -> Any:
    return make_task(60)


@pytest.fixture(scope="module")
def verifier(task: Any) -> Any:
    return make_transformer(task, seed=3)


def traced(
    path: Path,
    task: Any,
    verifier: Any,
    sample: dict[str, Any],
    method: Options | Drafter | Method,
    model: Any = None,
    **more: Any,
) -> tuple[Trace, list]:
    """Decode with a trace; return the trace and the hypotheses."""
    spec = method.spec if isinstance(method, Options) else methods.find("nat" if isinstance(method, Method) else "gad")
    settings = asdict(method.options) if isinstance(method, Options) else {}
    writer = TraceWriter(str(path), task.source_dictionary, task.target_dictionary, spec, settings)
    generator, _ = make_generator([verifier], task, method, model, trace=writer, max_len_b=20)
    hypotheses = generator.generate([verifier], sample, **more)
    assert not path.exists(), "has its name before the run has ended"
    writer.close()
    assert not path.with_name(path.name + ".partial").exists()
    return read_trace(str(path)), hypotheses


def assert_consistent(trace: Trace, hypotheses: list, lengths: list[int] = LENGTHS) -> None:
    """Drafts and verifier tokens of the iterations give the output, and scores, which are short, the generator's."""
    assert [sentence.output for sentence in trace.sentences] == ids(hypotheses)
    for sentence, expected, length in zip(trace.sentences, scores(hypotheses), lengths, strict=True):
        assert len(sentence.source) == length + 1
        torch.testing.assert_close(torch.tensor(sentence.log_probs), expected, rtol=0, atol=1e-4)
        assert all(math.isfinite(score) and len(str(score)) <= 9 for score in sentence.log_probs)
        together, their_log_probs = [], []
        for note in sentence.iterations:
            together += note.draft[: note.accepted]
            their_log_probs += note.draft_log_probs[: note.accepted]
            if len(note.why) > note.accepted:
                together.append(note.verifier[note.accepted])
                their_log_probs.append(note.verifier_log_probs[note.accepted])
                assert note.why[-1] in ("verifier", "unverified")
            for log_prob in note.drafter_log_probs or []:
                assert log_prob is not None and log_prob <= 0
            if note.bifurcation is not None:
                assert note.draft[note.bifurcation] != note.verifier[note.bifurcation]
        assert together == sentence.output
        assert their_log_probs == pytest.approx(sentence.log_probs, abs=2e-4)


def reasons(trace: Trace) -> set[str]:
    return {why for sentence in trace.sentences for note in sentence.iterations for why in note.why}


def test_header_holds_decoder_options_and_symbols(tmp_path: Path, task: Any, verifier: Any) -> None:
    """Infinite options are text, since JSON cannot hold them as numbers."""
    options = Options("gad++", block_size=4, top_beta=3, tau=math.inf)
    model = make_drafter(task, block_size=4)
    trace, _ = traced(tmp_path / "t", task, verifier, make_sample(task, LENGTHS), options, model)
    assert trace.decoder == "gad++"
    assert (trace.options["block_size"], trace.options["top_beta"], trace.options["tau"]) == (4, 3, "inf")
    assert trace.target_symbols[EOS] == "</s>" and "w3" in trace.source_symbols
    with open(tmp_path / "t", encoding="utf-8") as file:
        header = json.loads(file.readline())
    assert (header["format"], header["version"]) == ("spec-dec-trace", 3)


@pytest.mark.parametrize("right", [0, 1, 3])
def test_exact_drafts_are_top_1_up_to_the_bifurcation(tmp_path: Path, task: Any, verifier: Any, right: int) -> None:
    sample = make_sample(task, LENGTHS)
    outputs = ids(fairseq_greedy([verifier], task, sample, max_len_b=20))
    drafter = ScriptedDrafter(right_then_wrong(outputs, right), 5)
    trace, hypotheses = traced(tmp_path / "t", task, verifier, sample, drafter)
    assert_consistent(trace, hypotheses)
    assert reasons(trace) <= {"top-1", "verifier"}
    first = trace.sentences[0].iterations[0]
    assert (first.accepted, first.bifurcation) == (right, right)
    assert first.why == ["top-1"] * right + ["verifier"]


def test_end_of_sentence_in_a_draft_leaves_no_bifurcation(tmp_path: Path, task: Any, verifier: Any) -> None:
    sample = make_sample(task, LENGTHS)
    outputs = ids(fairseq_greedy([verifier], task, sample, max_len_b=20))
    drafter = ScriptedDrafter(always_right(outputs), 50)
    trace, hypotheses = traced(tmp_path / "t", task, verifier, sample, drafter)
    assert_consistent(trace, hypotheses)
    for sentence in trace.sentences:
        (note,) = sentence.iterations
        if len(sentence.output) < 20:
            assert (note.accepted, note.bifurcation) == (len(sentence.output), None)
            assert set(note.why) == {"top-1"}


def test_relaxed_tokens_are_top_beta(tmp_path: Path, task: Any, verifier: Any) -> None:
    sample = make_sample(task, LENGTHS)
    model = make_drafter(task, block_size=6)
    options = Options("gad++", block_size=6, top_beta=30, tau=50.0)
    trace, hypotheses = traced(tmp_path / "t", task, verifier, sample, options, model)
    assert_consistent(trace, hypotheses)
    assert "top-beta" in reasons(trace) <= {"top-1", "top-beta", "verifier"}
    for sentence in trace.sentences:
        for note in sentence.iterations:
            assert note.drafter_log_probs is not None
            for column in range(note.accepted):
                agrees = note.draft[column] == note.verifier[column]
                assert note.why[column] == ("top-1" if agrees else "top-beta")
                gap = note.verifier_log_probs[column] - note.draft_log_probs[column]
                assert gap == 0 if agrees else 0 <= gap <= 50


@pytest.mark.xdist_group("known")
@pytest.mark.parametrize(
    ("options", "kind", "drafter", "expected"),
    [
        (Options("greedy"), "random", None, {"verifier"}),
        (Options("gad", block_size=6), "random", "tokens", {"top-1", "verifier"}),
        (Options("gad", block_size=6, fixed_width=False), "random", "tokens", {"top-1", "verifier"}),
        (Options("iad"), "rewriter", None, {"source copy", "verifier"}),
        (Options("iad", 6, iad_fallback="gad"), "random", "tokens", {"source copy", "top-1", "verifier"}),
        (Options("reuse", 6), "random", None, {"reused draft", "verifier"}),
        (Options("nat", block_size=6), "random", "tokens", {"unverified"}),
        (Options("jacobi"), "few words", None, {"fixed point", "verifier"}),
        (Options("gs-jacobi", block_size=4), "few words", None, {"fixed point", "verifier"}),
        (Options("hybrid-jacobi", jacobi_length=12), "few words", None, {"fixed point", "verifier"}),
        (Options("blockwise"), "heads", None, {"head", "verifier"}),
        (Options("blockwise", top_beta=8, tau=50.0), "heads", None, {"head", "relaxed", "verifier"}),
    ],
    # Sets print in any order, and processes of pytest-xdist compare the names of tests.
    ids=lambda value: str(sorted(value) if isinstance(value, set) else value),
)
def test_every_drafter_has_its_reasons(
    tmp_path: Path, options: Options, kind: str, drafter: str | None, expected: set[str]
) -> None:
    case = known(kind)
    model = case.drafter(drafter)
    trace, hypotheses = traced(tmp_path / "t", case.task, case.model, case.sample, options, model)
    assert_consistent(trace, hypotheses, [length - 1 for length in case.sample["net_input"]["src_lengths"].tolist()])
    notes = [note for sentence in trace.sentences for note in sentence.iterations]
    assert {why for note in notes for why in note.why} == expected
    assert sum(note.accepted for note in notes) >= (0 if options.spec.name == "greedy" else 12)
    said = {note.drafter_log_probs is not None for note in notes if note.draft}
    assert said <= {options.spec.name == "gad"}


class Listening(Drafter):
    """Records a drafter's log-probabilities of its tokens, from its scores of the whole vocabulary."""

    def __init__(self, inner: Drafter) -> None:
        self.inner = inner
        self.heard: dict[int, list[list[float]]] = {}
        for name in ("start", "append_rows", "observe", "select_rows"):
            setattr(self, name, getattr(inner, name))

    def draft(self, state: DecodingState) -> Draft:
        draft = self.inner.draft(state)
        if draft.tokens.size(1) > 0:
            said = draft.log_probs.gather(2, draft.tokens[:, :, None]).squeeze(2)
            for sentence, scores_of_tokens in zip(state.sentences, said.tolist(), strict=True):
                self.heard.setdefault(sentence, []).append(scores_of_tokens)
        return draft


@pytest.mark.parametrize("transitions", [{}, {"transition_rank": 4, "transition_state": 5}], ids=["each", "path"])
def test_drafter_log_probs(tmp_path: Path, task: Any, verifier: Any, transitions: dict) -> None:
    model = make_drafter(task, 1, block_size=6, **transitions)
    if transitions:
        torch.nn.init.normal_(model.decoder.transition.after.weight)
    drafter = Listening(NatDrafter(model, 6, Engine(), DraftOptions(keep_log_probs=True, with_survival=True)))
    trace, hypotheses = traced(tmp_path / "t", task, verifier, make_sample(task, LENGTHS), drafter)
    assert_consistent(trace, hypotheses)
    for number, sentence in enumerate(trace.sentences):
        log_probs = [note.drafter_log_probs for note in sentence.iterations if note.draft]
        assert len(log_probs) > 3 and len({tuple(scores_of_tokens) for scores_of_tokens in log_probs}) > 1
        for recorded, expected in zip(log_probs, drafter.heard[number], strict=True):
            assert recorded == pytest.approx(expected, abs=2e-4)


class Alone(ScriptedDrafter):
    """A scripted drafter that decodes alone: its drafts have the highest scores, then `second`."""

    second = 7

    def draft(self, state: DecodingState) -> Draft:
        draft = super().draft(state)
        scores = torch.zeros(*draft.tokens.shape, 60)
        scores[..., self.second] = 5.0
        draft.log_probs = scores.scatter(2, draft.tokens[:, :, None], 9.0).log_softmax(-1)
        draft.num_drafted = None
        return draft


def test_a_forbidden_draft_without_a_verifier(tmp_path: Path, task: Any, verifier: Any) -> None:
    """EOS is drafted first, which is forbidden: the best allowed token is emitted, which was not drafted."""
    drafter = Alone(lambda sentence, done, width: [[EOS, 5, 6], [8, 9, EOS]][min(done, 1)], 3)
    method = Method(DrafterIsVerifier(Engine()), drafter, GreedySearch(accept_all))
    trace, hypotheses = traced(tmp_path / "t", task, verifier, make_sample(task, [4]), method)
    assert_consistent(trace, hypotheses, [4])
    assert trace.sentences[0].output == [7, 8, 9, EOS]
    first, second = trace.sentences[0].iterations
    assert (first.accepted, first.bifurcation, first.draft_log_probs[0]) == (0, 0, None)
    assert (second.accepted, second.bifurcation, second.why) == (3, None, ["unverified"] * 3)


def test_forced_prefix_is_given(tmp_path: Path, task: Any, verifier: Any) -> None:
    sample = make_sample(task, [4, 7])
    drafter = ScriptedDrafter(always_wrong(ids(fairseq_greedy([verifier], task, sample, max_len_b=20))), 2)
    prefix = torch.tensor([[5, 6, 7], [8, 1, 1]])
    trace, hypotheses = traced(tmp_path / "t", task, verifier, sample, drafter, prefix_tokens=prefix)
    assert_consistent(trace, hypotheses, [4, 7])
    first, second = (sentence.iterations[0].why for sentence in trace.sentences)
    assert first == ["given"] * 3 + ["verifier"] and second == ["given", "verifier"]


def test_targets_and_ids_come_from_the_sample(tmp_path: Path, task: Any, verifier: Any) -> None:
    sample = make_sample(task, [4, 7])
    sample["id"] = torch.tensor([17, 3])
    sample["target"] = torch.tensor([[5, 6, EOS], [7, EOS, 1]])
    trace, _ = traced(tmp_path / "t", task, verifier, sample, Options("greedy"))
    assert [sentence.id for sentence in trace.sentences] == [17, 3]
    assert [sentence.target for sentence in trace.sentences] == [[5, 6, EOS], [7, EOS]]
    del sample["id"], sample["target"]
    trace, _ = traced(tmp_path / "u", task, verifier, sample, Options("greedy"))
    assert [(sentence.id, sentence.target) for sentence in trace.sentences] == [(0, None), (1, None)]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory, task: Any, verifier: Any) -> str:
    path = tmp_path_factory.mktemp("trace") / "good.jsonl"
    traced(path, task, verifier, make_sample(task, LENGTHS), Options("jacobi"))
    return path.read_text(encoding="utf-8")


def changed(field: str, value: Any, line: int = 1, note: bool = False) -> Callable[[str], str]:
    """Change a field of one line, or of the first iteration in it."""

    def change(text: str) -> str:
        lines = text.splitlines()
        record = json.loads(lines[line])
        (record["iterations"][0] if note else record)[field] = value
        lines[line] = json.dumps(record)
        return "\n".join(lines) + "\n"

    return change


@pytest.mark.parametrize(
    ("spoil", "line", "message"),
    [
        (lambda text: text[:-20], 5, "is truncated"),
        (lambda text: text[:30], 1, "is truncated"),
        (lambda text: "", 1, "not the header"),
        (lambda text: "H-0\t-0.5\tsome text\n", 1, "not the header"),
        (lambda text: '{"id": 3, "tokens": 5}\n', 1, "not the header"),
        (lambda text: "[]\n", 1, "not the header"),
        (lambda text: text.replace("spec-dec-trace", "other-trace", 1), 1, "not the header"),
        (changed("version", 2, line=0), 1, "version 2, but only version 3 can be read; decode again"),
        (changed("target_symbols", [1, 2], line=0), 1, "symbols"),
        (lambda text: text.replace("\n", "\n{}\n", 1), 2, "not a sentence"),
        (lambda text: text.replace("\n", "\n\n", 1), 2, "not a sentence"),
        (lambda text: text.replace("\n", "\n\x00\xff\n", 1), 2, "not a sentence"),
        (changed("source", "text"), 2, "not a sentence"),
        (changed("source", [True]), 2, "not a sentence"),
        (changed("drafter_log_probs", ["likely"], note=True), 2, "not a sentence"),
    ],
)
def test_bad_lines_are_refused(tmp_path: Path, good: str, spoil: Callable[[str], str], line: int, message: str) -> None:
    path = tmp_path / "spoilt.jsonl"
    path.write_bytes(spoil(good).encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigurationError) as caught:
        read_trace(str(path))
    assert str(caught.value).startswith(f"{path}, line {line}: ")
    assert message in str(caught.value) and "trace_file=" in str(caught.value)


def test_missing_file_names_the_interrupted_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_trace(str(tmp_path / "t"))
    (tmp_path / "t.partial").write_text("")
    with pytest.raises(ConfigurationError, match="was interrupted or failed"):
        read_trace(str(tmp_path / "t"))


def test_nothing_to_trace() -> None:
    for decoder, scores_reference, is_one_run, message in (
        ("beam", False, True, "--decoder beam"),
        ("gad", True, True, "--score-reference"),
        ("gad", False, False, "fairseq-generate"),
    ):
        with refused(message):
            check_traceable("t", methods.find(decoder), scores_reference, is_one_run)
    check_traceable("t", methods.find("gad"), False, True)
