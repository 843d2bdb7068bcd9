"""A service: sentences of many threads, with options of their own, have the translations that they have alone."""

import copy
import pickle
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from typing import Any

import pytest

from fairseq_plugins.api import Model, Service, ServiceClosed, ServiceFailed, ServiceFull, Step, service_engines
from fairseq_plugins.decoding.decoded import Decoded
from tests.api.released import loaded
from tests.errors import refused

TEXTS = [
    "A man is riding a bicycle.",
    "Two dogs play in the snow near a red house while children watch them from a window .",
    "",
    "People",
    "A little girl in a pink dress climbs into a wooden cabin with her brother and a small brown dog .",
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"max_len_b": 4},
    {"min_len": 20},
    {"unkpen": 3.0},
    {"lenpen": 2.0},
    {"temperature": 0.5},
    {"alignments": True},
]
ENDLESS: dict[str, Any] = {"min_len": 900, "max_len_b": 1000}


def threads(decoder: str, options: dict[str, Any]) -> int:
    """Return two threads for one decoder only: threads wait for each other by computing."""
    return 2 if decoder == "gad" and not options else 1


@pytest.fixture(scope="module")
def model() -> Model:
    return loaded("gad", threads=2)


@pytest.fixture(scope="module")
def service(model: Model) -> Service:
    return model.service(max_sentences=40)


SAMPLING: list[dict[str, Any]] = [
    {"sampling": True},
    {"sampling": True, "seed": 7, "temperature": 1.5},
    {"sampling": True, "sampling_topk": 9, "num_hypotheses": 3},
    {"sampling": True, "sampling_topp": 0.8, "beam": 4, "num_hypotheses": 2, "alignments": True},
    {},
]
BEAMS = [{"beam": 1}, {"beam": 5, "num_hypotheses": 3}, {"beam": 3, "lenpen": 0.5}]


def requests(decoder: str) -> list[tuple[str, dict[str, Any]]]:
    """Return texts with options."""
    found = [(text, {"max_len_b": 30, **options}) for text in TEXTS for options in OPTIONS]
    if decoder == "fast-beam":
        found = [(text, {**options, **BEAMS[i % 3]}) for i, (text, options) in enumerate(found)]
    if decoder == "reuse":
        found = [(text, {**options, "drafts": ["Ein Mann fährt Rad."]}) for text, options in found]
    return found


@pytest.mark.parametrize(
    ("decoder", "options", "step"),
    [
        ("gad", {}, 1),
        ("fast-beam", {}, 2),
        ("reuse", {}, 3),
        ("greedy", {"no_compiled_steps": True}, 6),
        ("beam", {}, 6),
    ],
)
def test_translations_are_those_of_translate(decoder: str, options: dict[str, Any], step: int) -> None:
    own, cases = loaded(decoder, threads=threads(decoder, options), **options), requests(decoder)[::step]
    expected = [own.translate(text, return_scores=True, **given) for text, given in cases]
    with own.service() as service, ThreadPoolExecutor(8) as pool:
        has_admission = decoder != "beam" and not options
        assert service.engine.startswith("continuous" if has_admission else "whole batches: ")
        futures = list(pool.map(lambda case: service.submit(case[0], **case[1]), cases))
        rounding = 0 if has_admission else 1e-5
        for future, theirs in zip(futures, expected, strict=True):
            ours = future.result(60)
            assert (ours.text, ours.tokens, ours.alignment) == (theirs.text, theirs.tokens, theirs.alignment)
            assert [*ours.token_scores, ours.score] == pytest.approx([*theirs.token_scores, theirs.score], abs=rounding)
            assert [other.text for other in ours.alternatives] == [other.text for other in theirs.alternatives]
            assert ours.emitted is None if theirs.emitted is None else len(ours.token_scores) == sum(ours.emitted or [])
        deadline = time.monotonic() + 60
        while service.sentences:  # counted down after the last result has been set
            assert time.monotonic() < deadline


def test_outputs_of_whole_batches_are_as_long_as_alone() -> None:
    """The longest output of a batch depends on its longest source."""
    own = loaded("greedy", no_compiled_steps=True, threads=1)
    options: dict[str, Any] = {"max_len_a": 0.4, "max_len_b": 1}
    with own.service() as service:
        # The first one is decoded alone, and those that come meanwhile together.
        futures = [service.submit(text, **options) for text in TEXTS * 2]
        assert [future.result(60).text for future in futures] == [own.translate(text, **options) for text in TEXTS] * 2


@pytest.mark.parametrize(
    ("decoder", "options"), [("gad", {}), ("greedy", {"no_compiled_steps": True}), ("fast-beam", {})]
)
def test_samples_are_those_of_translate(decoder: str, options: dict[str, Any]) -> None:
    """Of sentences with their own seeds and options in one running batch, at their places in a text."""
    own = loaded(decoder, threads=threads(decoder, options), **options)
    texts, samplings = (TEXTS[::3], SAMPLING[1::2]) if options else ([text for text in TEXTS if text], SAMPLING)
    cases = [(number, text, given) for given in samplings for number, text in enumerate(texts)]
    expected = [one for given in samplings for one in own.translate(texts, return_scores=True, max_len_b=30, **given)]
    with own.service() as service:
        futures = [service.submit(text, number=number, max_len_b=30, **given) for number, text, given in cases]
        for future, theirs in zip(futures, expected, strict=True):
            ours = future.result(60)
            samples = [(one.text, one.alignment) for one in (ours, *ours.alternatives)]
            assert samples == [(one.text, one.alignment) for one in (theirs, *theirs.alternatives)]
            assert all(sum(one.emitted) == len(one.token_scores) for one in (ours, *ours.alternatives) if one.emitted)


@pytest.mark.parametrize("options", [{}, {"no_compiled_steps": True}])
def test_streams(options: dict[str, Any]) -> None:
    own = loaded("gad", threads=threads("gad", options), **options)
    with own.service() as service:
        for text in TEXTS:
            steps, expected = list(service.stream(text)), own.translate(text, return_scores=True)
            assert all(isinstance(step, Step) for step in steps) and steps[-1].text == expected.text
            assert [step.finished for step in steps] == [False] * (len(steps) - 1) + [True]
            assert sum(len(step.tokens) for step in steps) == len(expected.tokens)
        sampling: dict[str, Any] = {"sampling": True, "seed": 5, "temperature": 1.5}
        assert list(service.stream(TEXTS[0], **sampling))[-1].text == own.translate(TEXTS[0], **sampling)


def test_what_does_not_fit_is_refused_at_once(service: Service, model: Model) -> None:
    for text, options, message in (
        ("word " * 3000, {}, "the model reads at most"),
        (TEXTS[0], {"beam": 5}, "keeps one hypothesis"),
        (TEXTS[0], {"nonsense": 1}, "no such option"),
        (TEXTS[0], {"min_len": 5, "max_len_b": 2}, "longer than the longest output"),
        (TEXTS[0], {"drafts": "Ein Mann"}, "not for decoder gad"),
        (TEXTS[0], {"sampling_topk": 3}, "is for sampling"),
    ):
        with refused(message):
            service.submit(text, **options)
    with refused("3: a stream is of one sample"):
        service.stream(TEXTS[1], sampling=True, num_hypotheses=3)  # type: ignore[call-arg]
    assert service.sentences == 0 and service.submit(TEXTS[0]).result(30).text
    with loaded("fast-beam", threads=1).service(max_beam=3) as beams:
        with refused("samples up to 3"):
            beams.submit(TEXTS[0], beam=4)
        with refused("several hypotheses"):
            beams.stream(TEXTS[0], beam=3)
    with loaded("gad++", preset="high-quality").service() as relaxed, refused("output depends on the drafts"):
        relaxed.submit(TEXTS[1], sampling=True).result(30)
    for numbers in ({"max_sentences": 0}, {"max_beam": 0}):
        with refused("give at least 1"):
            model.service(**numbers)
    for threads in (0, 100_000):
        with refused(f"--threads {threads}: give a whole number of at "):
            model.service(threads)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_services_are_not_copied(service: Service, copied: Any) -> None:
    with pytest.raises(TypeError, match="^a service is not copied or pickled; make one of each copy"):
        copied(service)


def test_a_full_service_refuses_and_cancelled_sentences_make_room(service: Service) -> None:
    futures = [service.submit(TEXTS[0], **ENDLESS) for _ in range(40)]
    with pytest.raises(ServiceFull, match="try again later"):
        service.submit(TEXTS[0])
    assert all(future.cancel() for future in futures) and not wait(futures, 5).not_done
    assert service.submit(TEXTS[0]).result(30).text
    with pytest.raises(CancelledError):
        futures[0].result()


def test_leaving_a_stream_drops_its_sentence(service: Service) -> None:
    steps = service.stream(TEXTS[0], **ENDLESS)
    assert next(steps).text and service.sentences == 1
    steps.close()  # type: ignore[attr-defined]
    assert service.sentences == 0


def test_only_sentences_that_are_awaited_hold_up_alignments(
    service: Service, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    with model._turn():  # as during a call
        assert service.submit(TEXTS[0], alignments=True).result(60).alignment
    has_begun, may_end, aligned = threading.Event(), threading.Event(), []

    def slow(*_: Any) -> None:
        has_begun.set()
        aligned.append(may_end.wait(60))

    monkeypatch.setattr(service_engines, "align", slow)
    first = service.submit(TEXTS[0], alignments=True)
    assert has_begun.wait(60)
    left, last = (service.submit(TEXTS[0], alignments=True) for _ in range(2))
    service.submit(TEXTS[0], min_len=100, max_len_b=100).result(60)  # the shorter ones have been decoded before
    assert left.cancel()
    may_end.set()
    assert first.result(60).text == last.result(60).text and aligned == [True, True]


def test_an_error_of_a_callers_function_harms_its_sentence_only(service: Service) -> None:
    def fails(step: Step) -> None:
        raise OSError("gone")

    broken = service.submit(TEXTS[1], on_step=fails)
    sound = service.submit(TEXTS[0])
    with pytest.raises(OSError, match="gone"):
        broken.result(30)
    assert sound.result(30).text


def test_an_error_of_a_batch_harms_the_sentence_that_has_it_only(monkeypatch: pytest.MonkeyPatch) -> None:
    own = loaded("greedy", no_compiled_steps=True, threads=1)
    decode = own._decode

    def fails(inputs: list[Any], *more: Any) -> Any:
        if any(sentence.number == 2 for sentence in inputs):
            raise OSError("gone")
        return decode(inputs, *more)

    monkeypatch.setattr(own, "_decode", fails)
    with own.service() as service:
        # The first one is decoded alone, and those that come meanwhile together.
        futures = [service.submit(TEXTS[0], number=number) for number in range(4)]
        with pytest.raises(OSError, match="gone"):
            futures[2].result(30)
        assert len({future.result(30).text for future in (*futures[:2], futures[3])}) == 1


def test_a_batch_that_fails_ends_its_sentences_and_another_one_begins(model: Model) -> None:
    """As after a failed allocation in a thread of the kernels (test_failed_allocations.py)."""
    waits, has_jobs = threading.Event(), threading.Event()

    def fail(seconds: float) -> None:
        waits.set()
        has_jobs.wait(30)
        raise MemoryError("std::bad_alloc")

    with model.service() as service:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(service._engines[0]._backend, "take", fail)  # type: ignore[union-attr]
            assert waits.wait(30)
            futures = [service.submit(TEXTS[0], **ENDLESS) for _ in range(3)]
            has_jobs.set()
            for future in futures:
                with pytest.raises(MemoryError, match="std::bad_alloc"):
                    future.result(30)
        assert service.submit(TEXTS[0]).result(30).text == model.translate(TEXTS[0])


def test_a_sentence_whose_batch_fails_before_it_joins_has_the_next_one(model: Model) -> None:
    with model.service() as service:
        failed = service._engines[0]
        assert isinstance(failed, service_engines.ContinuousEngine)
        admit = failed._backend.admit

        def late(*arguments: Any) -> None:
            failed.is_closed = True
            failed._backend.generator.close()
            admit(*arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(failed._backend, "admit", late)
            assert service.submit(TEXTS[0]).result(30).text == model.translate(TEXTS[0])
        assert service._engines[0] is not failed and service.sentences == 0


def test_a_caller_may_renew_a_failed_batch_elsewhere(model: Model) -> None:
    """An event loop has no seconds for it."""
    with model.service() as service:
        service._engines[0].close()
        with pytest.raises(ServiceFailed, match="call renew"):
            service.submit(TEXTS[0], renew=False)
        assert service.has_failed and service.sentences == 0
        service.renew()
        assert service.submit(TEXTS[0], renew=False).result(30).text == model.translate(TEXTS[0])


@pytest.mark.parametrize("ended", [0, 1])
def test_a_batch_that_fails_while_samples_join(ended: int, model: Model) -> None:
    """It has ended the sentence, or samples of it, which the next batch draws again."""
    drawn = {"sampling": True, "num_hypotheses": 2}
    with model.service() as service:
        failed = service._engines[0]
        assert isinstance(failed, service_engines.ContinuousEngine)
        admit = failed._backend.admit

        def late(numbers: list[int], *arguments: Any) -> None:
            job = failed._jobs[numbers[0]]
            if ended:
                job.decoded = dict.fromkeys(numbers, Decoded([], []))
            else:
                job.end(MemoryError("std::bad_alloc"))
            failed.is_closed = True
            failed._backend.generator.close()
            admit(numbers, *arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(failed._backend, "admit", late)
            future = service.submit(TEXTS[0], **drawn)
        if ended:
            (wanted,) = model.translate_batch([model.tokenize(TEXTS[0])], **drawn)
            assert future.result(30).text == wanted.text
        else:
            with pytest.raises(MemoryError, match="std::bad_alloc"):
                future.result(30)
            assert service._engines[0] is failed, "another batch is made for nothing"
        assert service.sentences == 0


def test_a_sentence_that_was_refused_leaves_nothing_behind(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as where there is no memory for the last of its samples."""
    with model.service() as service:
        engine = service._engines[0]
        assert isinstance(engine, service_engines.ContinuousEngine)
        admit = engine._backend.admit

        def fail(*arguments: Any) -> None:
            admit(*arguments)
            raise MemoryError

        with monkeypatch.context() as patch:
            patch.setattr(engine._backend, "admit", fail)
            with pytest.raises(MemoryError):
                service.submit(TEXTS[0], **ENDLESS)
        assert not engine._jobs and service.sentences == 0
        deadline = time.monotonic() + 60
        while engine._backend.generator.load() != (0, 0):
            assert time.monotonic() < deadline
        assert service.submit(TEXTS[0]).result(30).text == model.translate(TEXTS[0])


def test_closing_while_a_sentence_is_submitted(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    service = model.service()
    admit = service._engines[0].admit

    def late(job: Any) -> None:
        service.close()
        admit(job)

    monkeypatch.setattr(service._engines[0], "admit", late)
    with pytest.raises(ServiceClosed):
        service.submit(TEXTS[0])


def test_closing_waits_and_then_drops(model: Model) -> None:
    service = model.service()
    short = service.submit(TEXTS[0])
    assert service.close(30) and short.result(0).text
    with pytest.raises(ServiceClosed):
        service.submit(TEXTS[0])
    service = model.service()
    long = service.submit(TEXTS[0], **ENDLESS)
    started = time.monotonic()
    assert not service.close(0.01) and time.monotonic() - started < 60
    with pytest.raises(ServiceClosed):
        long.result(0)


@pytest.mark.parametrize("options", [{}, {"alignments": True}])
def test_a_callers_function_may_close(options: dict[str, Any], model: Model) -> None:
    """It runs in a thread of the service, for which closing does not wait."""
    service, has_closed = model.service(), threading.Event()

    def close(_: Any) -> None:
        service.close()
        has_closed.set()

    with model._weights:  # alignments wait for it, until the function is added
        service.submit(TEXTS[0], **options).add_done_callback(close)
    assert has_closed.wait(30)


@pytest.mark.parametrize("options", [{}, {"no_compiled_steps": True}])
def test_an_end_after_the_end_harms_nobody(options: dict[str, Any]) -> None:
    """Closing a service ends sentences that its own thread may end at the same time."""
    with loaded("gad", threads=threads("gad", options), **options).service() as service:
        ended = service.submit(TEXTS[1])
        ended.set_exception(ServiceClosed())
        assert service.submit(TEXTS[0]).result(30).text and service.submit(TEXTS[3]).result(30).text
