"""The compiled kernels with models, drafters and tokens that are broken or do not fit."""

from typing import Any

import pytest

from fairseq_plugins.decoding.reference.engine import Engine
from tests.support import (
    Options,
    assert_same_output,
    decode,
    fairseq_greedy,
    ids,
    make_all,
    make_dictionary,
    make_drafter,
    make_sample,
    make_task,
    make_transformer,
)


@pytest.mark.parametrize("fixed_width", [True, False])
@pytest.mark.parametrize("options", [{}, {"share_encoder": True}, {"drafter_context": "features"}], ids=str)
def test_a_source_dictionary_smaller_than_the_targets(options: dict[str, Any], fixed_width: bool) -> None:
    """Decode, and profile costs, which uses random sources."""
    task = make_task(30)
    task.src_dict = make_dictionary(9)
    model, sample = make_transformer(task, 1), make_sample(task, [3, 0, 8])
    drafter = make_drafter(task, 2, verifier=model, **options)
    ours, _ = decode([model], task, sample, Options("gad", 4, fixed_width=fixed_width), drafter, max_len_b=20)
    assert_same_output(ours, fairseq_greedy([model], task, sample, max_len_b=20))


def test_out_of_vocabulary_token_is_rejected() -> None:
    task, model, sample = make_all(20, 1, [4])
    with pytest.raises(ValueError, match="outside of the vocabulary"):
        decode([model], task, sample, Options("greedy"), max_len_b=9, bos_token=99)
    sample["net_input"]["src_tokens"][0, 0] = 77
    with pytest.raises(ValueError, match="outside of the vocabulary"):
        decode([model], task, sample, Options("greedy"), max_len_b=9)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_output_with_broken_drafters(value: float) -> None:
    """Tokens are verified even if their probabilities are invalid."""
    task, verifier, sample = make_all(100, 11, [0, 1, 33, 7])
    expected = ids(fairseq_greedy([verifier], task, sample, max_len_b=20))
    transition = {"transition_rank": 3, "transition_state": 5}
    drafter = make_drafter(task, 2, verifier=verifier, drafter_context="features", **transition)
    shared = {parameter.data_ptr() for parameter in verifier.parameters()}
    own = [(name, weight) for name, weight in drafter.named_parameters() if weight.data_ptr() not in shared]
    assert len(own) > 20
    for number, (name, parameter) in enumerate(own):
        kept = parameter.data.clone()
        parameter.data.view(-1)[:: max(1, parameter.numel() // 3)] = value
        how = Options("gad", 5, fixed_width=number > 0)
        assert ids(decode([verifier], task, sample, how, drafter, max_len_b=20)[0]) == expected, name
        parameter.data.copy_(kept)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("how", "engine"), [(Options("greedy"), None), (Options("fast-beam"), None), (Options("greedy"), Engine())], ids=str
)
def test_scores_that_are_nan_are_an_error(how: Options, engine: Engine | None, value: float) -> None:
    task, model, sample = make_all(20, 1, [4, 9])
    beam = {"beam_size": 3} if how.spec.searches_beams else {}
    for part in (model.encoder.layers[0].fc1, model.decoder.layers[1].fc2, model.decoder.layers[0].encoder_attn.q_proj):
        kept = part.weight.data.clone()
        part.weight.data[1, 2] = value
        with pytest.raises(RuntimeError, match="not numbers"):
            decode([model], task, sample, how, engine=engine, max_len_b=9, **beam)
        part.weight.data.copy_(kept)


@pytest.mark.parametrize("fixed_width", [True, False])
@pytest.mark.parametrize("decoder", ["gs-jacobi", "hybrid-jacobi"])
def test_blocks_beyond_the_longest_output_take_no_memory(decoder: str, fixed_width: bool) -> None:
    task, model, sample = make_all(40, 3, [5, 3, 8])
    emitted = []
    for block_size in (22, 10**12, 2**70):
        length = {"jacobi_length": 2**70} if decoder == "hybrid-jacobi" else {}
        how = Options(decoder, block_size, fixed_width=fixed_width, **length)
        ours, stats = decode([model], task, sample, how, max_len_b=20)
        assert_same_output(ours, fairseq_greedy([model], task, sample, max_len_b=20))
        emitted.append([sentence.emitted for sentence in stats])
    assert not fixed_width or emitted[0] == emitted[1] == emitted[2]
