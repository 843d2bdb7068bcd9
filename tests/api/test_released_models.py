"""The released models for blockwise and Jacobi decoding, through the Python API."""

import fairseq_plugins
from tests.support import REPOSITORY

MULTI30K = REPOSITORY / "checkpoints" / "multi30k.en-de"
CAPTIONS = [
    "A man is riding a bicycle.",
    "Two dogs play in the snow near a red house.",
    "People are sitting at a table in a restaurant.",
    "",
    "A young girl in a pink dress is climbing up a set of stairs.",
    "Three women in white shirts are dancing on a stage in front of a large crowd.",
]


def test_released_heads_draft_more_than_one_token_per_iteration() -> None:
    """Head 1 verifies: the output is that of greedy decoding with the same weights."""
    heads = fairseq_plugins.load(MULTI30K, decoder="blockwise", fixed_width=True, device="cpu")
    greedy = fairseq_plugins.load(MULTI30K, verifier=MULTI30K / "blockwise.pt", decoder="greedy", device="cpu")
    policy = fairseq_plugins.load(MULTI30K, decoder="blockwise", device="cpu")
    expected = greedy.translate(CAPTIONS)
    assert heads.translate(CAPTIONS) == expected
    assert (heads.statistics.tokens_per_iteration or 0) > 2
    assert policy.translate(CAPTIONS) == expected


def test_released_verifier_converges_early() -> None:
    tokens = {}
    for name in ("verifier.pt", "jacobi.pt"):
        greedy = fairseq_plugins.load(MULTI30K, verifier=MULTI30K / name, decoder="greedy", device="cpu")
        jacobi = fairseq_plugins.load(
            MULTI30K, verifier=MULTI30K / name, decoder="jacobi", jacobi_init="unk", fixed_width=True, device="cpu"
        )
        assert jacobi.translate(CAPTIONS) == greedy.translate(CAPTIONS)
        tokens[name] = jacobi.statistics.tokens_per_iteration or 0
    assert tokens["verifier.pt"] < 1.3 < 1.8 < tokens["jacobi.pt"]
