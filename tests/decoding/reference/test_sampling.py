"""Sampling: the same outputs with any drafts, batches and backends, drawn as fairseq's sampler draws them."""

from collections import Counter
from typing import Any

import pytest
import torch
from fairseq.models.transformer import TransformerModel
from fairseq.search import Sampling as FairseqSampling
from fairseq.sequence_generator import SequenceGenerator
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding.native.model import NativeWeights
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.decoding.reference.noise import noise, noise_keys
from fairseq_plugins.decoding.reference.sampling import Sampling
from fairseq_plugins.tasks.spec_dec import SpecDecTask
from tests.decoding.methods.test_blockwise import make_blockwise
from tests.decoding.reference.drafters.test_vocabulary import counted
from tests.strategies import SOURCES, UNSHRUNK, example_count
from tests.support import Options, all_ids, decode, ids, make_all, make_drafter, make_sample

BACKENDS = {"torch": Engine(batch_invariant=True), "native": NativeWeights(batch_invariant=True)}
SAMPLINGS = [Sampling(), Sampling(topk=3), Sampling(topp=0.7), Sampling(temperature=0.5), Sampling(50, temperature=1.5)]
LIMITS = {"max_len_b": 10, "min_len": 2, "unk_penalty": 0.5}


def expected(
    model: TransformerModel, task: SpecDecTask, sample: dict[str, Any], sampling: Sampling, seed: int
) -> list[list[int]]:
    """Return samples token by token, from fairseq's model and the definitions of noise, top-k and top-p."""
    dictionary, outputs = task.target_dictionary, []
    for row, number in enumerate(sample["id"].tolist()):
        inputs = {name: value[row : row + 1] for name, value in sample["net_input"].items()}
        encoded, output = model.encoder(**inputs), [dictionary.eos()]
        for position in range(LIMITS["max_len_b"] + 1):
            logits = model.decoder(torch.tensor([output]), encoder_out=encoded)[0][0, -1]
            scores = (logits / sampling.temperature).log_softmax(-1)
            scores[dictionary.pad()] = -torch.inf
            scores[dictionary.unk()] -= LIMITS["unk_penalty"]
            if position < LIMITS["min_len"]:
                scores[dictionary.eos()] = -torch.inf
            if position == LIMITS["max_len_b"]:
                scores[torch.arange(len(scores)) != dictionary.eos()] = -torch.inf
            order = scores.argsort(descending=True)
            kept = order
            if sampling.topp:
                kept = order[: int((scores[order].exp().cumsum(0) < sampling.topp).sum()) + 1]
            elif sampling.topk:
                kept = order[: sampling.topk]
            key = noise_keys(seed, torch.tensor([number]), torch.tensor([0]))
            noisy = scores + noise(key, torch.tensor([[position]]), len(scores))[0, 0]
            output.append(int(kept[noisy[kept].argmax()]))
            if output[-1] == dictionary.eos():
                break
        outputs.append(output[1:])
    return outputs


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_outputs_are_the_best_noisy_scores_whatever_drafts(sampling: Sampling) -> None:
    task, model, sample = make_all(40, 3, [3, 9, 5, 1])
    sample["id"] = torch.tensor([4, 0, 70_000, 2])
    want = expected(model, task, sample, sampling, seed=5)
    reads_states = make_drafter(task, 4, 4, verifier=model, drafter_context="features", transition_rank=4)
    drafter = make_drafter(task, 5, 4, verifier=model)
    methods = [("greedy", None), ("gs-jacobi", None), ("gad", reads_states)]
    native_methods = [("iad", None), ("jacobi", None), ("gad", drafter)]
    for backend, engine in BACKENDS.items():
        for name, model_of in methods + (native_methods if backend == "native" else []):
            found, _ = decode(
                [model], task, sample, Options(name), model_of, engine=engine,
                sampling=sampling, seed=5, temperature=sampling.temperature, **LIMITS,
            )  # fmt: skip
            assert ids(found) == want, (backend, name)


@pytest.mark.parametrize("prefix", [None, [[5, 6], [7, 1], [1, 1], [1, 8]]])
def test_blockwise_heads_draft_samples(prefix: list[list[int]] | None) -> None:
    task, model = make_blockwise(3, 40)
    found, want = {}, {}
    for name, engine in BACKENDS.items():
        options = {"engine": engine, "sampling": Sampling(topp=0.9, temperature=0.6), "temperature": 0.6, **LIMITS}
        options |= {} if prefix is None else {"prefix_tokens": torch.tensor(prefix)}
        sample = make_sample(task, [3, 9, 5, 1])
        want[name], _ = decode([model], task, sample, Options("greedy"), **options)
        found[name], _ = decode([model], task, sample, Options("blockwise"), **options)
        assert ids(found[name]) == ids(want[name])
    assert ids(found["torch"]) == ids(found["native"])


@pytest.mark.parametrize("kind", ["features", "tokens", "heads"])
def test_drafts_of_both_backends_share_the_noise(kind: str) -> None:
    """Iterations emit as many tokens; at a high temperature only tokens drafted with the same noise agree."""
    task, model = make_blockwise(3, 40, identity_first_head=True)
    sample, drafter, method = make_sample(task, [3, 9, 5, 1, 8, 30]), None, Options("blockwise")
    if kind != "heads":
        options = {"drafter_context": "features"} if kind == "features" else {}
        drafter, method = make_drafter(task, 5, 4, verifier=model, transition_rank=4, **options), Options("gad", 4)
        counted(drafter, list(range(2, 38, 2)))
    counts = {}
    for name, engine in BACKENDS.items():
        _, stats = decode(
            [model], task, sample, method, drafter, engine=engine,
            sampling=Sampling(temperature=20.0), temperature=20.0, **LIMITS,
        )  # fmt: skip
        counts[name] = [sentence.emitted for sentence in stats]
    assert counts["torch"] == counts["native"]
    emitted = [count for sentence in counts["torch"] for count in sentence]
    assert sum(emitted) > 1.25 * len(emitted)


@settings(UNSHRUNK, max_examples=example_count(20))
@given(
    sources=SOURCES,
    again=st.lists(st.integers(0, 99), max_size=4),
    sampling=st.builds(
        Sampling,
        st.sampled_from([0, 0, 2, 7]),
        st.sampled_from([0.0, 0.0, 0.6, 0.95]),
        st.sampled_from([0.5, 1.0, 1.5]),
    ),
    samples=st.integers(1, 3),
    size=st.integers(1, 4),
    seed=st.integers(0, 2**40),
)
def test_samples_depend_on_nothing_else(
    sources: list[int], again: list[int], sampling: Sampling, samples: int, size: int, seed: int
) -> None:
    """Neither on drafts, batches, threads, nor the backend; also of sentences that a batch has several times."""
    task, model, sample = make_all(40, 3, sources)
    order = torch.tensor([*range(len(sources)), *(number % len(sources) for number in again)])
    whole = {name: value[order] for name, value in sample["net_input"].items()}
    drafter = make_drafter(task, 4, 4, verifier=model, drafter_context="features", transition_rank=4)

    def drawn(how: Options, backend: str, width: int, threads: int) -> list[list[list[int]]]:
        torch.set_num_threads(threads)
        found: list = []
        for begin in range(0, len(order), width):
            rows = slice(begin, begin + width)
            inputs = {name: value[rows] for name, value in whole.items()}
            outputs, _ = decode(
                [model], task, {"id": torch.arange(len(order))[rows] * 1000, "net_input": inputs}, how,
                drafter if how.spec.name == "gad" else None, engine=BACKENDS[backend], sampling=sampling, seed=seed,
                temperature=sampling.temperature, samples=samples, **LIMITS,
            )  # fmt: skip
            assert all(each[0]["score"] >= each[-1]["score"] for each in outputs)
            found += all_ids(outputs)
        return found

    expected = drawn(Options("greedy"), "native", len(order), 1)
    assert drawn(Options("gad"), "native", size, 2) == expected
    assert drawn(Options("gs-jacobi", 3), "native", len(order), 3) == expected
    assert drawn(Options("gad"), "torch", size, 1) == expected


def compared_with_fairseq(sampling: Sampling, how: Options, count: int) -> float:
    """Return chi-square of `count` whole outputs of ours and of fairseq's, as a number of standard deviations."""
    task, model, sample = make_all(7, 11, [3])
    limits = {"max_len_b": 2, "temperature": sampling.temperature}
    torch.manual_seed(1)
    search = FairseqSampling(task.target_dictionary, sampling.topk or -1, sampling.topp or -1.0)
    theirs = SequenceGenerator([model], task.target_dictionary, beam_size=5, search_strategy=search, **limits)
    inputs = {name: value.repeat_interleave(500, 0) for name, value in sample["net_input"].items()}
    many = {**sample, "net_input": inputs, "id": torch.arange(500)}
    batches = [theirs.generate([model], many) for _ in range(count // 2500)]
    fairseqs = Counter(tuple(tokens) for batch in batches for outputs in all_ids(batch) for tokens in outputs)
    options = {"engine": BACKENDS["native"], "sampling": sampling, "samples": count, **limits}
    found, _ = decode([model], task, sample, how, **options)
    ours = Counter(map(tuple, all_ids(found)[0]))
    rare = [output for output in ours | fairseqs if ours[output] + fairseqs[output] < 10]
    terms = [(ours[o] - fairseqs[o]) ** 2 / (ours[o] + fairseqs[o]) for o in ours | fairseqs if o not in rare]
    assert sum(ours[o] + fairseqs[o] for o in rare) < 0.01 * count and len(terms) > 3
    # Wilson and Hilferty: the cube root is nearly normal.
    spread = 2 / (9 * (len(terms) - 1))
    return ((sum(terms) / (len(terms) - 1)) ** (1 / 3) - (1 - spread)) / spread**0.5


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(topk=3), Sampling(topp=0.8, temperature=1.2)], ids=str)
def test_outputs_have_the_distribution_of_fairseqs_sampler(sampling: Sampling) -> None:
    assert compared_with_fairseq(sampling, Options("gs-jacobi", 2), 5_000) < 3.5
