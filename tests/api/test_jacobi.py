"""The released verifier for Jacobi decoding, through the Python API."""

import fairseq_plugins
from tests.support import REPOSITORY

FOLDER = REPOSITORY / "checkpoints" / "multi30k.en-de"
CAPTIONS = [
    "A man is riding a bicycle.",
    "Two dogs play in the snow near a red house.",
    "People are sitting at a table in a restaurant.",
    "A young girl in a pink dress is climbing up a set of stairs.",
]


def test_released_verifier_converges_early() -> None:
    tokens = {}
    for name in ("verifier.pt", "jacobi.pt"):
        greedy = fairseq_plugins.load(FOLDER, verifier=FOLDER / name, decoder="greedy", device="cpu")
        jacobi = fairseq_plugins.load(FOLDER, verifier=FOLDER / name, decoder="jacobi", jacobi_init="unk", device="cpu")
        assert jacobi.translate(CAPTIONS) == greedy.translate(CAPTIONS)
        tokens[name] = jacobi.statistics.mean_accepted_tokens or 0
    assert tokens["verifier.pt"] < 1.3 < 1.8 < tokens["jacobi.pt"]
