"""Steps from graphs give what steps without give: shapes, padding, memory that stays, eviction and giving up.

Most of these tests run without a GPU. In place of a CUDA graph stands a recording: like a graph it knows nothing but
operations and addresses, and runs the same ones on the same tensors every time.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from fairseq import utils
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fairseq_plugins.decoding.generator import DraftVerifyGenerator
from fairseq_plugins.decoding.reference.cached_decoder import CachedDecoder
from fairseq_plugins.decoding.reference.captured import graph_capture, graphed_decoder
from fairseq_plugins.decoding.reference.captured.graph_capture import Graphs, Outputs, capture_on_cuda
from fairseq_plugins.decoding.reference.captured.graph_capture import Run as Launch
from fairseq_plugins.decoding.reference.captured.graphed_decoder import GraphedDecoder, cached_decoder
from fairseq_plugins.decoding.reference.engine import Engine
from tests.decoding.methods.test_blockwise import make_blockwise
from tests.strategies import (
    BLOCK_SIZES,
    DRAFTERS,
    FEATURE_DRAFTERS,
    SEARCHES,
    SOURCES,
    TRANSFORMERS,
    UNSHRUNK,
    example_count,
    fitting,
)
from tests.support import (
    Options,
    assert_same_hypotheses,
    assert_same_output,
    fairseq_beam,
    fairseq_greedy,
    ids,
    make_args,
    make_drafter,
    make_generator,
    make_sample,
    make_task,
    make_transformer,
)


def tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def storages(values: Any) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors(values)}


class Recording(TorchDispatchMode):
    """Takes down every operation with the tensors that it read and made, and refuses what waits for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Callable, tuple, dict, list[torch.Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("_local_scalar_dense", "item", "is_nonzero", "nonzero", "lift_fresh", "_to_copy"):
            raise RuntimeError(f"operation not permitted when stream is capturing: {name}")
        result = func(*args, **(kwargs or {}))
        # What shares memory with the input is a view or was changed in place.
        is_new = not storages(result) & storages((args, kwargs))
        self.operations.append((func, args, kwargs or {}, tensors(result) if is_new else []))
        return result

    def forget(self) -> None:
        """Overwrite what the operations allocated, as another graph in the same memory may."""
        for *_, made in self.operations:
            for value in made:
                if value.is_floating_point():
                    value.fill_(torch.nan)

    def replay(self) -> None:
        for func, args, kwargs, made in self.operations:
            new = func(*args, **kwargs)
            if made:
                for old, value in zip(made, tensors(new), strict=True):
                    old.copy_(value)


class Recorder:
    """Stands in for `capture_on_cuda`, and counts."""

    def __init__(self, fails_from: int | None = None) -> None:
        self.fails_from = fails_from
        self.captures = self.replays = 0
        self.last: Recording | None = None

    def __call__(self, run: Launch) -> Launch:
        self.captures += 1
        run()
        if self.fails_from is not None and self.captures >= self.fails_from:
            raise RuntimeError("operation would make\nthe capture fail")
        recording = Recording()
        with recording:
            outputs = run()

        def replay() -> Outputs:
            self.replays += 1
            if self.last is not None and self.last is not recording:
                self.last.forget()
            self.last = recording
            recording.replay()
            return outputs

        return replay


def graphing(monkeypatch: pytest.MonkeyPatch, recorder: Recorder, **limits: int) -> Engine:
    """An engine that captures with this recorder, with other constants of `graphed_decoder`.

    The compiled kernels of the CPU cannot be recorded, and are not what runs on a GPU.
    """
    for name, value in limits.items():
        monkeypatch.setattr(graph_capture if hasattr(graph_capture, name) else graphed_decoder, name, value)
    return Engine(graphs=Graphs(recorder, "cpu"))


def decoders(generator: DraftVerifyGenerator) -> list[CachedDecoder]:
    """The verifiers' and the drafter's."""
    method = generator.backend.method
    verifier, drafter = method.verifier, method.drafter
    return [*getattr(verifier, "decoders", []), *([drafter.decoder.cached] if hasattr(drafter, "model") else [])]


def check(
    monkeypatch: pytest.MonkeyPatch,
    models: list,
    task: Any,
    batches: list[list[int]],
    method: Options,
    model: Any = None,
    seed: int = 0,
    active: int = 0,
    limits: dict[str, int] | None = None,
    **search: Any,
) -> Recorder:
    """Decode batch after batch with and without graphs; lossless methods also as fairseq does."""
    search = dict(search)
    per_batch = {"bos_token": search.pop("bos_token")} if "bos_token" in search else {}
    plain, plain_stats = make_generator(models, task, method, model, active_sentences=active, engine=Engine(), **search)
    samples = [make_sample(task, sources, seed + number) for number, sources in enumerate(batches)]
    expected = [plain.generate(models, sample, **per_batch) for sample in samples]
    recorder = Recorder()
    with monkeypatch.context() as patch:
        engine = graphing(patch, recorder, **(limits or {}))
        graphed, graphed_stats = make_generator(
            models, task, method, model, active_sentences=active, engine=engine, **search
        )
        for sample, wanted in zip(samples, expected, strict=True):
            ours = graphed.generate(models, sample, **per_batch)
            assert_same_hypotheses(ours, wanted)
            if method.spec.name not in ("gad++", "nat"):
                theirs = fairseq_beam(models, task, sample, **{"beam": 1, **_beam(search)}, **per_batch)
                assert_same_hypotheses(ours, theirs)
        assert [sentence.emitted for sentence in graphed_stats.recorded] == [
            sentence.emitted for sentence in plain_stats.recorded
        ]
        assert all(isinstance(decoder, GraphedDecoder) for decoder in decoders(graphed))
        assert not engine.graphs.failed
        assert all(len(decoder.steps.graphs) <= graph_capture.MAX_GRAPHS for decoder in decoders(graphed))
    return recorder


def _beam(search: dict[str, Any]) -> dict[str, Any]:
    return {"beam" if name == "beam_size" else name: value for name, value in search.items()}


RELAXED = {"gad++": {"top_beta": 3, "tau": 1.0}}
TRAINED = st.one_of(DRAFTERS, FEATURE_DRAFTERS)
# Decoder -> options of its drafter.
DRAFTERS_OF = {"gad": TRAINED, "gad++": TRAINED, "nat": DRAFTERS} | dict.fromkeys(
    ("greedy", "iad", "gs-jacobi", "blockwise", "fast-beam"), st.none()
)
LIMITS = st.fixed_dictionaries(
    {
        "EAGER_USES": st.sampled_from([0, 1, 3]),
        "MAX_GRAPHS": st.sampled_from([1, 3, 64]),
        "MAX_ROWS": st.sampled_from([8, 2048]),
        "_MIN_SLOTS": st.sampled_from([1, 64]),
        "_MIN_SOURCE": st.sampled_from([1, 32]),
    }
)


@pytest.mark.parametrize("decoder", DRAFTERS_OF)
@settings(UNSHRUNK, max_examples=example_count(8))
@given(
    data=st.data(),
    batches=st.lists(SOURCES, min_size=1, max_size=3),
    options=st.lists(TRANSFORMERS, min_size=1, max_size=2),
    block_size=BLOCK_SIZES,
    search=SEARCHES,
    beam=st.sampled_from([1, 2, 5]),
    active=st.sampled_from([0, 0, 1, 3]),
    limits=LIMITS,
    seed=st.integers(0, 1000),
)
def test_output_is_that_without_graphs(
    monkeypatch: pytest.MonkeyPatch, decoder: str, data: st.DataObject, batches: list[list[int]],
    options: list[dict[str, Any]], block_size: int, search: dict[str, Any], beam: int, active: int,
    limits: dict[str, int], seed: int,
) -> None:  # fmt: skip
    """Also of ensembles, and where graphs are dropped, shapes are too large for one, or sentences wait for others."""
    task, drafter = make_task(24), None
    models: list[Any] = [make_transformer(task, seed + number, **choice) for number, choice in enumerate(options)]
    drafter_options = data.draw(DRAFTERS_OF[decoder])
    if drafter_options is not None:
        drafter = make_drafter(task, seed + 9, verifier=models[0], **fitting(drafter_options, options[0]))
    if decoder == "blockwise":
        task, model = make_blockwise(seed, 24, identity_first_head=True)
        models = [model]
    elif decoder == "nat":
        models = [drafter]
    how = Options(decoder, *([] if drafter is None else [block_size]), **RELAXED.get(decoder, {}))
    if decoder == "fast-beam":
        search = {**search, "beam_size": beam}
    check(monkeypatch, models, task, batches, how, drafter, seed, active, limits, **search)


def bits(generated: list) -> list[tuple[list[int], list[float]]]:
    """Ids and scores of every sentence."""
    return [(best["tokens"].tolist(), best["positional_scores"].tolist()) for (best, *_) in generated]


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_scores_do_not_depend_on_how_often_a_shape_came_up(
    batch_invariant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In half precision, where other shapes give other bits: launched, captured, replayed, and with graphs off."""
    task = make_task(60)
    verifier = make_transformer(task, 8).to(torch.bfloat16)
    drafter = make_drafter(task, 9, verifier=verifier, drafter_context="features").to(torch.bfloat16)
    sample = make_sample(task, [5, 30, 2, 9, 14], 3)
    recorder = Recorder()
    engine = replace(graphing(monkeypatch, recorder), batch_invariant=batch_invariant)
    generator, _ = make_generator([verifier], task, Options("gad", 5), drafter, max_len_b=20, engine=engine)
    replays, outputs = [], []
    for _ in range(4):
        outputs.append(bits(generator.generate([], sample)))
        replays.append(recorder.replays)
    assert replays[0] < replays[2] < replays[3]
    off = replace(engine, graphs=Graphs(recorder, "cpu", enabled=False))
    generator, _ = make_generator([verifier], task, Options("gad", 5), drafter, max_len_b=20, engine=off)
    outputs.append(bits(generator.generate([], sample)))
    assert all(output == outputs[0] for output in outputs)
    assert off.graphs.captures == 0 < off.graphs.launched and not off.graphs.are_on
    plain, _ = make_generator([verifier], task, Options("gad", 5), drafter, max_len_b=20, engine=Engine())
    # That the comparison can fail.
    assert batch_invariant or bits(plain.generate([], sample)) != outputs[0]


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory while capturing"), RuntimeError("an illegal memory access")]
)
def test_other_errors_are_seen_and_do_not_switch_graphs_off(
    error: RuntimeError, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    task = make_task(60)
    verifier = make_transformer(task, 8)
    sample = make_sample(task, [5, 30, 2])
    recorder = Recorder()
    failing = [error]

    def capture(run: Launch) -> Launch:
        if failing:
            raise failing.pop()
        return recorder(run)

    engine = Engine(graphs=Graphs(capture, "cpu"))
    monkeypatch.setattr(graph_capture, "EAGER_USES", 0)
    generator, _ = make_generator([verifier], task, Options("greedy"), max_len_b=20, engine=engine)
    with pytest.raises(type(error), match=str(error)):
        generator.generate([], sample)
    assert engine.graphs.are_on and not caplog.messages
    assert_same_output(generator.generate([], sample), fairseq_greedy([verifier], task, sample, max_len_b=20))
    assert engine.graphs.captures == recorder.captures > 0


def test_ended_rows_do_not_lengthen_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the maximum length: masks beyond it would change the last scores of `nat`."""
    task = make_task(24)
    pre_norm = {f"{side}_normalize_before": True for side in ("encoder", "decoder")}
    more = {"decoder_learned_pos": True, "layernorm_embedding": True}
    verifier = make_transformer(task, 612, activation_fn="gelu", decoder_layers=1, decoder_output_dim=12, **more)
    options = {"drafter_attention": "prefix-causal", "share_encoder": True, **pre_norm, **more}
    drafter = make_drafter(task, 621, verifier=verifier, **options)
    search = {"max_len_a": 0.5, "max_len_b": 9, "temperature": 0.5}
    check(monkeypatch, [drafter], task, [[2, 36, 34, 0, 13, 23, 9, 14]], Options("nat", 3), drafter, seed=613, **search)


@pytest.mark.parametrize(
    ("method", "drafter_options"),
    [
        (Options("gad", 5), {}),
        (Options("gad", 5), {"drafter_attention": "full"}),
        (Options("gad", 5), {"drafter_context": "features"}),
        (Options("fast-beam"), {}),
    ],
)
def test_most_steps_of_a_run_come_from_few_graphs(
    monkeypatch: pytest.MonkeyPatch, method: Options, drafter_options: dict[str, Any]
) -> None:
    task = make_task(60)
    verifier = make_transformer(task, 8)
    drafter = make_drafter(task, 9, verifier=verifier, **drafter_options)
    recorder = Recorder()
    engine = graphing(monkeypatch, recorder)
    search = {"max_len_b": 40, "beam_size": 3 if method.spec.searches_beams else 1}
    generator, _ = make_generator([verifier], task, method, drafter, engine=engine, **search)
    for seed in range(6):
        generator.generate([], make_sample(task, [5, 30, 2, 9, 14, 0, 22, 7], seed))
    counted = engine.graphs
    assert (counted.captures, counted.replays) == (recorder.captures, recorder.replays)
    assert counted.captures < 35 and counted.replays > 4 * counted.launched > 0


def test_what_other_batches_leave_in_memory_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task(60)
    verifier = make_transformer(task, 8)
    drafter = make_drafter(task, 9, verifier=verifier, src_embedding_copy=True)
    samples = [make_sample(task, sources, 5) for sources in ([30, 2, 9, 14, 0], [4, 1, 3], [21])]
    expected = [fairseq_greedy([verifier], task, sample, max_len_b=40) for sample in samples]
    recorder = Recorder()
    engine = graphing(monkeypatch, recorder, EAGER_USES=0)
    generator, _ = make_generator([verifier], task, Options("gad", 5), drafter, max_len_b=40, engine=engine)
    for sample, wanted in zip(samples, expected, strict=True):
        assert_same_output(generator.generate([], sample), wanted)
        with torch.inference_mode():
            for decoder in decoders(generator):
                for name in ("cache", "cross", "mask_embeddings", "output 0"):
                    if name in decoder.buffers:
                        decoder.buffers[name].fill_(torch.nan)
    assert recorder.replays > 0 and all("cache" in decoder.buffers for decoder in decoders(generator))
    assert any("mask_embeddings" in decoder.buffers for decoder in decoders(generator))


@pytest.mark.parametrize("fails_from", [1, 2, 4])
def test_giving_up_takes_one_line(
    fails_from: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A capture that fails, the first or a later one, changes nothing but speed, and is not tried again."""
    task = make_task(60)
    verifier = make_transformer(task, 8)
    drafter = make_drafter(task, 9, verifier=verifier, drafter_context="features")
    samples = [make_sample(task, [5, 30, 2, 9, 14, 0], seed) for seed in range(3)]
    recorder = Recorder(fails_from)
    engine = graphing(monkeypatch, recorder)
    with caplog.at_level(logging.INFO):
        generator, _ = make_generator([verifier], task, Options("gad", 5), drafter, max_len_b=40, engine=engine)
        for sample in samples:
            expected = fairseq_greedy([verifier], task, sample, max_len_b=40)
            assert_same_output(generator.generate([], sample), expected)
    (line,) = [message for message in caplog.messages if "CUDA graphs" in message]
    assert "operation would make the capture fail" in line and "--no-cuda-graphs" in line and "\n" not in line
    assert recorder.captures == fails_from
    # Decoders of this engine that are made later do not try.
    again, _ = make_generator([verifier], task, Options("gad", 5), drafter, max_len_b=40, engine=engine)
    again.generate([], samples[0])
    assert recorder.captures == fails_from and engine.graphs.failed


def test_waiting_for_the_device_cannot_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What these tests rely on: a step that asks for a number of the device would be noticed."""
    task = make_task(60)
    verifier = make_transformer(task, 8)
    embed = CachedDecoder._embed

    def waits(self: CachedDecoder, *given: Any) -> torch.Tensor:
        x = embed(self, *given)
        assert x.sum().item() is not None
        return x

    monkeypatch.setattr(CachedDecoder, "_embed", waits)
    engine = graphing(monkeypatch, Recorder())
    generator, _ = make_generator([verifier], task, Options("greedy"), max_len_b=40, engine=engine)
    generator.generate([], make_sample(task, [5, 7]))
    assert engine.graphs.failed


def test_switch() -> None:
    task = make_task(60)
    verifier = make_transformer(task, 8)
    for off, eval_bleu, wanted in ((False, False, True), (True, False, False), (False, True, None)):
        task.cfg.decoding_method, task.cfg.no_cuda_graphs, task.cfg.eval_bleu = "greedy", off, eval_bleu
        task.cfg.no_compiled_steps = True
        generator = task.build_generator([verifier], make_args(beam=1))
        engine = generator.backend.method.verifier.engine
        assert (None if engine.graphs is None else engine.graphs.are_on) == wanted
        if engine.graphs is not None:
            assert engine.graphs.capture is capture_on_cuda and engine.graphs.device_type == "cuda"
        assert type(cached_decoder(verifier.decoder, engine)) is CachedDecoder, "on a CPU"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("drafter_options", [{}, {"drafter_attention": "full"}, {"drafter_context": "features"}])
def test_cuda_graphs(drafter_options: dict[str, Any]) -> None:
    task = make_task(60)
    verifier = make_transformer(task, 8)
    drafter = make_drafter(task, 9, verifier=verifier, **drafter_options)
    verifier.cuda(), drafter.cuda()
    samples = [utils.move_to_cuda(make_sample(task, [5, 30, 2, 9, 14, 0, 22, 7], seed)) for seed in range(4)]
    expected = [ids(fairseq_greedy([verifier], task, sample, max_len_b=40)) for sample in samples]
    outputs = []
    for wanted in (True, False):
        engine = Engine(graphs=Graphs(enabled=wanted))
        generator, _ = make_generator([verifier], task, Options("gad", 5), drafter, max_len_b=40, engine=engine)
        outputs.append([ids(generator.generate([], sample)) for sample in samples])
        assert any(decoder.steps.graphs for decoder in decoders(generator)) == wanted
        assert not engine.graphs.failed and (engine.graphs.captures > 0) == wanted
    assert outputs == [expected, expected]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_on_a_gpu(dtype: torch.dtype) -> None:
    """The ids of `greedy` on one sentence at a time, launched, captured and replayed."""
    task = make_task(60)
    verifier = make_transformer(task, 8).to(dtype).cuda()
    drafter = make_drafter(task, 9, verifier=verifier, drafter_context="features").to(dtype).cuda()
    search = {"max_len_a": 0, "max_len_b": 30}
    engine = Engine(graphs=Graphs(), batch_invariant=True)
    greedy, _ = make_generator([verifier], task, Options("greedy"), engine=engine, **search)
    sample = make_sample(task, [5, 30, 2, 9, 14, 0, 22, 7])
    sources = sample["net_input"]["src_tokens"]
    expected = []
    for row in sources:
        tokens = row[row != task.source_dictionary.pad()][None]
        alone = {"net_input": {"src_tokens": tokens, "src_lengths": torch.tensor([tokens.size(1)])}}
        expected += ids(greedy.generate([], utils.move_to_cuda(alone)))
    generator, _ = make_generator([verifier], task, Options("gad", 5), drafter, engine=engine, **search)
    for _ in range(4):
        assert ids(generator.generate([], utils.move_to_cuda(sample))) == expected
    assert engine.graphs.are_on and engine.graphs.replays > 0
