"""The kernels' generator refuses parts and batches that do not fit, and decodes the next batch."""

import copy
import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding.backends import choose_backend
from fairseq_plugins.decoding.native import kernels
from fairseq_plugins.decoding.native.model import NativeWeights
from tests.decoding.methods.test_blockwise import make_blockwise
from tests.strategies import DETERMINISTIC, example_count
from tests.support import Options, fairseq_greedy, make_drafter, make_sample, make_task, make_transformer

VOCABULARY, PAD, EOS, UNK = 30, 1, 2, 3
SYMBOLS = ("pad", "unk", "eos", "first_token")
FAR = [-1, -(2**40), 2**40, 2**62]


class Call:
    """Arguments of a valid generator and batch, of which a test breaks one.

    Attributes:
        parts: constructor arguments of the generator.
        batch: its sources and prefixes as tensors, other arguments of `Sentence`, and those of `begin`.
    """

    def __init__(self, how: Options, models: list | None = None, drafter: Any = None, beam: int = 1) -> None:
        self.task = make_task(VOCABULARY)
        self.models = models or [make_transformer(self.task, 1)]
        self.parts: dict[str, Any] = {}
        self.beam = beam if how.spec.searches_beams else 1
        module = kernels()
        real = module.Generator

        def spy(**parts: Any) -> Any:
            self.parts.update(parts)
            return real(**parts)

        with mock.patch.object(module, "Generator", spy):
            # With this small a cache, log-probabilities follow later.
            weights = NativeWeights(cached=0)
            choose_backend(how.spec, how.options, how.context(self.models, drafter, self.task, weights, beam=beam))
        self.sample = make_sample(self.task, [5, 0, 9])
        symbols = {"pad": PAD, "unk": UNK, "eos": EOS, "first_token": EOS}
        limits = {"min_len": 1, "max_len": 12, "unk_penalty": 0.0, "temperature": 1.0}
        self.batch = {"source": self.sample["net_input"]["src_tokens"], **symbols, **limits}

    def encoded(self, **changes: Any) -> "Call":
        """Return a call with sources encoded by PyTorch and changed by a function."""
        rows = int((self.batch["source"] != PAD).sum())
        arrays = {"encoded": torch.zeros(rows, 16), "embedding": torch.zeros(rows, 16)}
        self.batch |= {**arrays, **changes}
        return self

    def made(self) -> Any:
        return kernels().Generator(**self.parts)

    def begin(self, made: Any) -> None:
        """Begin the batch."""
        limits = dict(self.batch)
        named = {name: limits.pop(name) for name in (*SYMBOLS, "encoded", "embedding") if name in limits}
        source, prefix = limits.pop("source").tolist(), limits.pop("prefix", None)
        prefixes = [[]] * len(source) if prefix is None else prefix.tolist()
        made.begin(
            [
                kernels().Sentence([token for token in row if token != PAD], prefix=forced, beam=self.beam, **limits)
                for row, forced in zip(source, prefixes, strict=True)
            ],
            **named,
        )

    def run(self) -> list[list[int]]:
        """Return the outputs."""
        made = self.made()
        self.begin(made)
        if self.parts["beam"]:
            return [hypotheses[0][0].tolist() for hypotheses, _ in made.run_beams()]
        made.run()
        return [tokens.tolist() for tokens, _, _ in made.outputs()]


def made_once(make: Callable[..., Call]) -> Callable[..., Call]:
    """Let a function return copies of one call: building it takes longer than a small batch."""
    cached = functools.cache(make)

    @functools.wraps(make)
    def copied(**options: Any) -> Call:
        call = copy.copy(cached(**options))
        call.parts, call.batch = dict(call.parts), dict(call.batch)
        return call

    return copied


@made_once
def greedy() -> Call:
    return Call(Options("greedy"))


@made_once
def beams() -> Call:
    return Call(Options("fast-beam"), beam=3)


@made_once
def trained(**options: Any) -> Call:
    """Return a call with a trained drafter of these options."""
    task = make_task(VOCABULARY)
    model = make_transformer(task, 1)
    drafter = make_drafter(task, 2, verifier=model, transition_rank=3, transition_state=5, **options)
    return Call(Options("gad", 4), [model], drafter)


@made_once
def heads() -> Call:
    return Call(Options("blockwise"), [make_blockwise(3, VOCABULARY)[1]])


@made_once
def copies() -> Call:
    """Return a call with drafts given by the user."""
    return Call(Options("reuse", fixed_width=False))


def linear(inputs: int, outputs: int) -> Any:
    return NativeWeights().linear((torch.ones(outputs, inputs), None))


def test_valid_calls_run() -> None:
    call = greedy()
    expected = fairseq_greedy(call.models, call.task, call.sample, max_len_b=12)
    assert call.run() == [output[0]["tokens"].tolist() for output in expected]
    encoded = greedy().encoded(), greedy().encoded(embedding=None)
    for call in (beams(), trained(), trained(drafter_context="features"), heads(), *encoded):
        output = call.run()
        assert len(output) == 3 and all(tokens[-1] == EOS and len(tokens) <= 13 for tokens in output)


@pytest.mark.parametrize("decoder", ["greedy", "fast-beam"])
def test_reward_of_unknown_words_behind_better_chunks(decoder: str) -> None:
    """Beam search skips chunks of the vocabulary whose scores are too low."""
    call = Call(Options(decoder), [make_transformer(make_task(1100), 1)], beam=3)
    call.batch |= {"unk": 1050, "unk_penalty": -50.0}
    assert [tokens[0] for tokens in call.run()] == [1050] * 3


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (greedy, {"verifier": None}, "incompatible|a generator needs a decoder"),
        # an encoder in place of a decoder, without vocabulary projection
        (greedy, {"verifier": "encoder"}, "a generator needs a decoder"),
        (beams, {"beam": 15}, "too wide for the vocabulary"),
        (beams, {"beam": 2**40}, "too wide for the vocabulary"),
        (heads, {"head": (None, None)}, "a head has two layers|incompatible"),
        (heads, {"head": ((12, 96), (96, 16))}, "the head does not fit the decoder"),
        (heads, {"head": ((16, 90), (96, 16))}, "the head does not fit the decoder"),
        (heads, {"head": ((16, 96), (96, 12))}, "the head does not fit the decoder"),
        (heads, {"beam": 2}, "a beam search has no head"),
    ],
)
def test_generators_of_parts_that_do_not_fit(make: Callable[[], Call], changes: dict[str, Any], message: str) -> None:
    call = make()
    for name, value in changes.items():
        if name == "head":
            value = tuple(None if sizes is None else linear(*sizes) for sizes in value)
        call.parts[name] = call.parts["encoder"] if value == "encoder" else value
    with pytest.raises((ValueError, TypeError), match=message):
        call.made()


def test_drafters_for_other_models_are_refused() -> None:
    """Refused when the first batch begins, or when costs are profiled."""
    small = make_task(VOCABULARY - 1)
    other = make_transformer(make_task(VOCABULARY), 1, encoder_embed_dim=24)
    for options in ({}, {"drafter_context": "features"}):
        drafter = make_drafter(small, 2, verifier=make_transformer(small, 1), transition_rank=3, **options)
        call = greedy()
        call.parts["drafter"] = Call(Options("gad", 4), [make_transformer(small, 1)], drafter).parts["drafter"]
        with pytest.raises(ValueError, match="the vocabulary of the drafter is smaller"):
            call.run()
    call = Call(Options("greedy"), [other])
    call.parts["drafter"] = trained(drafter_context="features").parts["drafter"]
    with pytest.raises(ValueError, match="encoded in another width"):
        call.run()


def changed(values: torch.Tensor, value: int) -> torch.Tensor:
    """Return an array with another last value."""
    values = values.clone()
    values.view(-1)[-1] = value
    return values


# (change, error message)
BATCH_FLAWS: list[tuple[dict[str, Any], str]] = [
    *[({name: token}, "a special symbol is outside") for name in ("pad", "eos", "unk") for token in (30, *FAR)],
    *[({"first_token": token}, "a special symbol is outside") for token in (30, *FAR)],
    ({"min_len": 13}, "the lengths are not possible"),
    ({"max_len": -1}, "the lengths are not possible"),
    ({"max_len": 2**62}, "the lengths are not possible"),
    ({"min_len": 5, "max_len": 2**30}, "the lengths are not possible"),
    *[({"prefix": changed(torch.full((3, 3), 5), token)}, "a prefix is outside") for token in (30, *FAR)],
    *[({"drafts": [[5, 6], [5, token]]}, "a token of a draft is outside") for token in (30, *FAR)],
    ({"source": torch.full((3, 4), PAD)}, "a source has no token"),
    ({"suppressed": [7, 5]}, "in ascending order"),
    ({"begin_suppressed": [7, 5]}, "in ascending order"),
]


@pytest.mark.parametrize("make", [greedy, beams, trained])
@pytest.mark.parametrize(("changes", "message"), BATCH_FLAWS)
def test_batches_that_are_refused(make: Callable[[], Call], changes: dict[str, Any], message: str) -> None:
    call = make()
    call.batch |= changes
    with pytest.raises(ValueError, match=message):
        call.run()


@pytest.mark.parametrize("token", [VOCABULARY, *FAR])
@pytest.mark.parametrize("make", [greedy, beams, trained, heads])
def test_sources_outside_of_the_vocabulary(make: Callable[[], Call], token: int) -> None:
    call = make()
    call.batch["source"] = changed(call.batch["source"], token)
    with pytest.raises(ValueError, match="a source token is outside of the vocabulary"):
        call.run()


ENCODED_FLAWS: list[tuple[dict[str, Any], str]] = [
    ({"encoded": torch.zeros(17, 12), "embedding": None}, "encoded sources of another width"),
    ({"encoded": torch.zeros(16, 16)}, "another size"),
    ({"embedding": torch.zeros(16, 16)}, "another size"),
    ({"source": torch.full((3, 10), PAD)}, "a source has no token"),
    ({"encoded": torch.zeros(1, 17, 16)}, "incompatible"),
    ({"encoded": torch.zeros(17, 16, device="meta")}, "incompatible"),
]


@pytest.mark.parametrize(("changes", "error"), ENCODED_FLAWS)
def test_encoded_sources_that_do_not_fit(changes: dict[str, Any], error: str) -> None:
    with pytest.raises((ValueError, TypeError), match=error):
        greedy().encoded(**changes).run()


def test_masks_that_copy_need_embeddings() -> None:
    call = trained(share_encoder=True, src_embedding_copy=True).encoded()
    assert len(call.run()) == 3
    call.batch["embedding"] = None
    with pytest.raises(ValueError, match="the embeddings of the sources"):
        call.run()


@pytest.mark.parametrize("make", [greedy, beams, trained, heads])
def test_no_sentences(make: Callable[[], Call]) -> None:
    call = make()
    call.batch["source"] = call.batch["source"][:0]
    assert call.run() == []


@pytest.mark.parametrize("make", [greedy, beams])
def test_a_batch_has_to_begin(make: Callable[[], Call]) -> None:
    """`run` needs a `begin`, also after a refused batch."""
    call = make()
    made, broken = call.made(), make()
    broken.batch["source"] = torch.full((9, 4), 99)
    run, other = (made.run_beams, made.run) if call.parts["beam"] else (made.run, made.run_beams)
    for step in (run, other):
        with pytest.raises(ValueError, match="has begun"):
            step()
    call.begin(made)
    with pytest.raises(ValueError, match="has begun"):
        other()
    run()
    with pytest.raises(ValueError, match="a source token is outside"):
        broken.begin(made)
    with pytest.raises(ValueError, match="has begun"):
        run()
    call.begin(made)
    run()


@settings(DETERMINISTIC, max_examples=example_count(200))
@given(
    make=st.sampled_from([greedy, beams, trained]),
    name=st.sampled_from(["source", "prefix", "pad", "eos", "unk", "first_token", "max_len", "min_len"]),
    value=st.one_of(st.integers(-3, 40), st.integers(-(2**63), 2**63 - 1)),
)
def test_a_batch_is_run_or_refused(make: Callable[[], Call], name: str, value: int) -> None:
    """Replace a random value by a random one: the batch gives complete outputs or an error."""
    call = make()
    value = min(value, 300) if name in ("max_len", "min_len") and value < 2**30 else value
    if name in ("source", "prefix"):
        call.batch[name] = changed(call.batch["source"] if name == "source" else torch.full((3, 2), 5), value)
    else:
        call.batch[name] = value
    try:
        outputs = call.run()
    except ValueError:
        within = 0 <= value < VOCABULARY
        assert not within or name in ("min_len", "max_len", "eos", "pad", "source")
    else:
        assert len(outputs) == 3
        assert all(tokens[-1] == call.batch["eos"] for tokens in outputs)
        assert all(0 <= token < VOCABULARY for tokens in outputs for token in tokens)
