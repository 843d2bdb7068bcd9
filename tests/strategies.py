"""Hypothesis strategies: options of models and drafters, sources, and generation options."""

import os
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers

# Hypothesis would also draw constants of the package's modules that are imported so far: another set in each process.
providers._get_local_constants = lambda: providers._local_constants
# Test runs are reproducible: the code alone determines the examples.
DETERMINISTIC = settings(derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
# For slow examples: shrinking a failure would take minutes.
UNSHRUNK = settings(DETERMINISTIC, phases=[Phase.explicit, Phase.generate])


def example_count(examples: int) -> int:
    """Return half the number of examples, to keep test runs short; all or few of them as SPEC_DEC_EXAMPLES says."""
    return -(-examples // {"all": 1, "few": 20}.get(os.environ.get("SPEC_DEC_EXAMPLES", ""), 2))


_EMBEDDINGS: list[dict[str, Any]] = [
    {},
    {"share_decoder_input_output_embed": True},
    {"share_all_embeddings": True},
    {"decoder_output_dim": 12},
    {"encoder_embed_dim": 24},
    {"encoder_embed_dim": 8, "share_decoder_input_output_embed": True},
]
_NORMS: list[dict[str, Any]] = [
    {},
    {"encoder_normalize_before": True, "decoder_normalize_before": True},
    {"decoder_normalize_before": True, "no_decoder_final_norm": True},
]


def _flag(name: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.sampled_from([{}, {name: True}])


def _merged(*parts: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.tuples(*parts).map(lambda options: {key: value for part in options for key, value in part.items()})


TRANSFORMERS = _merged(
    st.sampled_from(_EMBEDDINGS),
    st.sampled_from(_NORMS),
    st.sampled_from([{}, {"encoder_learned_pos": True, "decoder_learned_pos": True}, {"decoder_learned_pos": True}]),
    st.sampled_from([{}, {"activation_fn": "gelu"}, {"activation_fn": "tanh"}]),
    st.fixed_dictionaries({"encoder_layers": st.integers(1, 3), "decoder_layers": st.integers(1, 3)}),
    _flag("layernorm_embedding"),
    _flag("no_scale_embedding"),
)
"""Options of a verifier."""

NATIVE = TRANSFORMERS.filter(
    lambda o: o.get("activation_fn") != "tanh" and not {"decoder_input_dim", "decoder_output_dim"} & o.keys()
)
"""Options of a verifier that the compiled kernels run: others run in PyTorch."""

DRAFTERS = _merged(
    st.sampled_from([{"drafter_attention": "full"}, {"drafter_attention": "prefix-causal"}]),
    st.sampled_from(_NORMS),
    st.fixed_dictionaries({"decoder_layers": st.integers(1, 2)}),
    st.sampled_from([{}, {"transition_rank": 3}, {"transition_rank": 3, "transition_state": 5}]),
    _flag("share_encoder"),
    _flag("src_embedding_copy"),
    _flag("decoder_learned_pos"),
    _flag("layernorm_embedding"),
)
"""Options of a drafter that reads tokens; see `fitting`."""

FEATURE_DRAFTERS = _merged(
    st.just({"drafter_context": "features"}),
    st.sampled_from(_NORMS),
    st.fixed_dictionaries(
        {"decoder_layers": st.integers(1, 3), "feature_layers": st.sampled_from([None, "0", "1", "1,0"])}
    ),
    st.sampled_from([{}, {"transition_rank": 3}, {"transition_rank": 3, "transition_state": 5}]),
    _flag("src_embedding_copy"),
    _flag("decoder_learned_pos"),
    _flag("layernorm_embedding"),
)
"""Options of a drafter that reads the verifier's states."""


def fitting(drafter: dict[str, Any], verifier: dict[str, Any]) -> dict[str, Any]:
    """Adapt a drafter's options to a verifier: its encoder width, and no copy of embeddings of another width."""
    width = verifier.get("encoder_embed_dim", 16)
    return {
        **drafter,
        "encoder_embed_dim": width,
        "src_embedding_copy": drafter.get("src_embedding_copy", False) and width == 16,
    }


SOURCES = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 40)), min_size=1, max_size=8)
"""Source lengths of one batch, empty lines included."""

BLOCK_SIZES = st.sampled_from([1, 3, 10, 25])

SEARCHES = _merged(
    st.sampled_from([{"max_len_b": 17}, {"max_len_b": 40}, {"max_len_a": 0.5, "max_len_b": 9}, {"max_len_b": 1}]),
    st.sampled_from([{}, {}, {"min_len": 0}, {"min_len": 5}]),
    st.sampled_from([{}, {}, {"unk_penalty": 1.5}, {"unk_penalty": -4.0}]),
    st.sampled_from([{}, {"len_penalty": 0.4}, {"normalize_scores": False}]),
    st.sampled_from([{}, {"temperature": 0.5}, {"temperature": 2.5}]),
    st.sampled_from([{}, {}, {"bos_token": 7}]),
).map(lambda options: {**options, "max_len_b": max(options["max_len_b"], options.get("min_len", 1))})
"""Generation options that change greedy output or its scores."""
