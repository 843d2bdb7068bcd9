"""Encoding in the kernels: the result for a sentence does not depend on the other sentences of the batch."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding.reference.encoder import FusedEncoder
from fairseq_plugins.decoding.reference.engine import Engine
from tests.strategies import SOURCES, TRANSFORMERS, UNSHRUNK, example_count
from tests.support import (
    Options,
    assert_same_output,
    decode,
    fairseq_greedy,
    ids,
    make_dictionary,
    make_drafter,
    make_generator,
    make_sample,
    make_task,
    make_transformer,
    scores,
)


def bits(output: list) -> list[tuple[list[int], list[float]]]:
    """Return ids and scores of each sentence."""
    return [(tokens, values.tolist()) for tokens, values in zip(ids(output), scores(output), strict=True)]


@settings(UNSHRUNK, max_examples=example_count(20))
@given(
    options=TRANSFORMERS,
    sources=SOURCES,
    how=st.sampled_from([Options("greedy"), Options("jacobi"), Options("fast-beam")]),
    seed=st.integers(0, 500),
)
def test_a_sentence_is_read_as_by_itself(options: dict[str, Any], sources: list[int], how: Options, seed: int) -> None:
    """Results are equal bit for bit in any batch, with padding on either side, and with any number of threads."""
    task = make_task(30)
    model = make_transformer(task, seed, ending=False, **{**options, "activation_fn": "gelu", "decoder_output_dim": 16})
    tokens = make_sample(task, sources, seed)["net_input"]["src_tokens"]
    pad = task.source_dictionary.pad()
    search = {"beam_size": 3} if how.spec.searches_beams else {}
    generator, _ = make_generator([model], task, how, max_len_b=6, **search)
    assert generator.backend.name == "native"

    def said(rows: torch.Tensor) -> list[tuple[list[int], list[float]]]:
        return bits(generator.generate([], {"net_input": {"src_tokens": rows, "src_lengths": rows.ne(pad).sum(1)}}))

    torch.set_num_threads(1)
    together = said(tokens)
    torch.set_num_threads(3)
    moved = torch.stack([torch.cat([row[row != pad], row[row == pad]]) for row in tokens])
    assert said(moved) == together
    assert [said(row[row != pad][None])[0] for row in tokens] == together


def test_many_sources_are_shared_among_threads() -> None:
    """In a wide model threads take whole sentences; results equal those of one thread bit for bit."""
    task = make_task(300)
    sizes = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in WIDE.items()}
    model = make_transformer(task, 3, ending=False, **sizes)
    sample = make_sample(task, [20, 3, 17, 9] * 4)
    results = []
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        results.append(bits(decode([model], task, sample, Options("greedy"), max_len_b=1)[0]))
    assert results[0] == results[1] == results[2]
    expected = fairseq_greedy([model], task, sample, max_len_b=1)
    assert [tokens for tokens, _ in results[0]] == ids(expected)


WIDE = {"embed_dim": 128, "ffn_embed_dim": 512, "attention_heads": 4}


@pytest.mark.parametrize("fixed_width", [True, False])
@pytest.mark.parametrize("options", [{}, {"share_encoder": True}, {"drafter_context": "features"}], ids=str)
def test_a_source_dictionary_smaller_than_the_targets(options: dict[str, Any], fixed_width: bool) -> None:
    """Decode, and profile costs, which uses random sources."""
    task = make_task(30)
    task.src_dict = make_dictionary(9)
    model = make_transformer(task, 1)
    drafter = make_drafter(task, 2, verifier=model, **options)
    sample = make_sample(task, [3, 0, 8])
    ours, _ = decode([model], task, sample, Options("gad", 4, fixed_width=fixed_width), drafter, max_len_b=20)
    assert_same_output(ours, fairseq_greedy([model], task, sample, max_len_b=20))


@settings(UNSHRUNK, max_examples=example_count(12))
@given(options=TRANSFORMERS, sources=SOURCES, seed=st.integers(0, 500))
def test_sources_that_pytorch_encodes(options: dict[str, Any], sources: list[int], seed: int) -> None:
    """The kernels decode sources that PyTorch has encoded, as for unsupported encoders."""
    task = make_task(30)
    model = make_transformer(task, seed, **{**options, "activation_fn": "relu", "decoder_output_dim": 16})
    sample = make_sample(task, sources, seed)
    expected = fairseq_greedy([model], task, sample, max_len_b=12)
    generator, _ = make_generator([model], task, Options("jacobi"), max_len_b=12)
    backend = generator.backend
    backend.encoder = FusedEncoder(model.encoder, Engine())
    assert_same_output(generator.generate([], sample), expected)
