"""`translate(constraints=...)`: the output of fairseq-interactive with `--constraints`."""

import math

import pytest

from tests.api.released import MULTI30K, interactive, loaded
from tests.errors import refused

TEXTS = ["A man rides a bicycle.", "Two dogs play in the snow.", "People on a street.", "A girl with a red hat sings."]
PHRASES = [["Straße", "ein Fahrrad"], None, "Personen", ["Mütze", "ein Lied"]]


@pytest.mark.parametrize("order", ["ordered", "unordered"])
def test_output_is_that_of_fairseq_interactive(order: str) -> None:
    model = loaded("fast-beam")
    given = [[phrase] if isinstance(phrase, str) else phrase or [] for phrase in PHRASES]
    lines = ["\t".join([text, *more]) for text, more in zip(TEXTS, given, strict=True)]
    expected = interactive(MULTI30K, lines, f"--task translation --beam 4 --nbest 2 --constraints {order}")
    options = {"beam": 4, "constraint_order": order}
    found = model.translate(TEXTS, constraints=PHRASES, num_hypotheses=2, return_scores=True, **options)
    outputs = [output for best in found for output in (best, *best.alternatives)]
    assert [output.text for output in outputs] == [text for _, text in expected]
    for output, (score, _) in zip(outputs, expected, strict=True):
        assert output.score / math.log(2) == pytest.approx(score, abs=1e-4)
    plain = model.translate(TEXTS, beam=4)
    assert found[1].text == plain[1] and all(found[number].text != plain[number] for number in (0, 2, 3))
    # One sentence has phrases of its own, also as subwords, and with fairseq's search.
    alone = found[3].text
    for one in (model, loaded("beam")):
        assert one.translate(TEXTS[3], constraints=PHRASES[3], **options) == alone
    words = [model.tokenize(phrase) for phrase in PHRASES[3] or []]
    (cut,) = model.translate_batch([model.tokenize(TEXTS[3])], constraints=[words], **options)
    assert cut.text == alone


@pytest.mark.parametrize(
    "text, options, message",
    [
        ("Dogs", {"constraints": "日"}, r"constraints\[0\]: the target's dictionary lacks '日'"),
        ("Dogs", {"constraints": ["Hund", " "]}, r"constraints\[0\]: a phrase is empty; leave it out"),
        (["Dogs", "Cats"], {"constraints": ["Hund"]}, "constraints: are for 1 sentences, and the text has 2"),
        (["Dogs"], {"constraints": "Hund"}, "constraints: are one string, and the text is a list"),
        (["Dogs", ""], {"constraints": [None, "Hund"]}, r"constraints\[1\]: the text is blank"),
        ("Dogs", {"constraints": "Hund", "split": "sentences"}, "sentences have no constraints of their own"),
        ("Dogs", {"constraint_order": "ordered"}, "constraint.order"),
        ("Dogs", {"constraints": "Hund", "constraint_order": "any"}, "constraint.order"),
        ("Dogs", {"constraints": ["Hund", "Katze"], "max_len_a": 0, "max_len_b": 1}, "nothing may end after 1 tokens"),
    ],
)
def test_mistakes(text: str, options: dict, message: str) -> None:
    with refused(message):
        loaded("fast-beam").translate(text, **options)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"decoder": "greedy"}, "constraints: greedy keeps one hypothesis"),
        ({"decoder": "beam", "diversity_rate": 0.5}, "constraints: are not for"),
        ({"decoder": "fast-beam", "match_source_len": True}, "constraints: are not for"),
    ],
)
def test_decoders_without_constraints_refuse_them(options: dict, message: str) -> None:
    with refused(message):
        loaded(**options).translate("Dogs", constraints="Hund")
