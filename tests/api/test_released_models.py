"""The released model for blockwise decoding, through the Python API."""

from tests.api.released import MULTI30K, loaded

CAPTIONS = [
    "A man is riding a bicycle.",
    "People are sitting at a table in a restaurant.",
    "",
    "Three women in white shirts are dancing on a stage in front of a large crowd.",
]


def test_released_heads_draft_more_than_one_token_per_iteration() -> None:
    """Head 1 verifies: the output is that of greedy decoding with the same weights."""
    heads, expected = loaded("blockwise", fixed_width=True), loaded("greedy", verifier=MULTI30K / "blockwise.pt")
    assert heads.translate(CAPTIONS) == expected.translate(CAPTIONS) == loaded("blockwise").translate(CAPTIONS)
    assert (heads.statistics.tokens_per_iteration or 0) > 2
