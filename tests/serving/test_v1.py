"""Our own interface: options, scores, drafts, streams."""

import asyncio
from typing import Any

import pytest
from pydantic import ValidationError

from fairseq_plugins.api import Model
from fairseq_plugins.api.loading import with_decoder
from fairseq_plugins.serving.models import ServedModel
from fairseq_plugins.serving.settings import Settings
from fairseq_plugins.serving.text import TextJob
from fairseq_plugins.serving.v1 import V1Request
from tests.serving.running import FOLDER, Client, serving

GREEDY_ELSEWHERE = "The young lady is looking at the pizza."  # another output than with a beam of 5
FIRST, SECOND = "A man is riding a bicycle in the park.", "Two dogs play in the snow near a red house."


@pytest.fixture(scope="module")
def beams(client: Client, served: ServedModel) -> Model:
    return with_decoder(served.model, "fast-beam")


def test_scores_and_tokens_are_those_of_translate(client: Client, served: ServedModel) -> None:
    asked = {"text": f"{FIRST} {SECOND}", "target": "de", "tokens": True}
    (found,) = client.post("/v1/translate", asked)["translations"]
    expected = served.model.translate([FIRST, SECOND], return_scores=True)
    assert found["text"] == " ".join(one.text for one in expected)
    for sentence, one, source in zip(found["sentences"], expected, [FIRST, SECOND], strict=True):
        assert sentence["source"] == source and sentence["tokens"] == one.tokens
        assert sentence["token_scores"] == one.token_scores and sentence["score"] == one.score
        assert sum(sentence["emitted"]) == len(one.token_scores)


def test_options_of_a_call(client: Client, served: ServedModel, beams: Model) -> None:
    cases: list[dict[str, Any]] = [{"beam": 5, "num_hypotheses": 3}, {"beam": 2, "lenpen": 0.5}, {"max_len_b": 3}]
    for options in cases:
        answer = client.post("/v1/translate", {"text": [FIRST, SECOND], "target": "de", "options": options})
        model = beams if "beam" in options else served.model
        assert answer["decoder"] == model.decoder
        for found, text in zip(answer["translations"], [FIRST, SECOND], strict=True):
            (sentence,), expected = found["sentences"], model.translate(text, return_scores=True, **options)
            assert (sentence["text"], sentence["score"]) == (expected.text, expected.score)
            assert [other["text"] for other in sentence["alternatives"]] == [o.text for o in expected.alternatives]


def test_samples_and_alignments(client: Client, served: ServedModel) -> None:
    """Samples of a request are those of one call with all of its sentences."""
    options = {"sampling": True, "seed": 3, "temperature": 1.5, "num_hypotheses": 2, "alignments": True}
    asked = {"text": f"{FIRST} {FIRST}", "target": "de", "options": options}
    (found,) = client.post("/v1/translate", asked)["translations"]
    expected = served.model.translate([FIRST, FIRST], return_scores=True, **options)
    assert expected[0].text != expected[1].text
    for sentence, one in zip(found["sentences"], expected, strict=True):
        assert sentence["text"] == one.text and sentence["alignment"] == one.alignment
        assert [other["text"] for other in sentence["alternatives"]] == [other.text for other in one.alternatives]
        assert sentence["source_tokens"] == served.model.tokenize(FIRST) and sentence["tokens"] == one.tokens
    drafted = client.post("/v1/translate", {**asked, "drafts": ["Ein Mann"]})["translations"]
    assert drafted[0]["text"] == found["text"]
    last = client.events({**asked, "options": {"sampling": True, "seed": 3}})[-1][1]["translations"][0]["text"]
    assert last == " ".join(served.model.translate([FIRST, FIRST], sampling=True, seed=3))


def test_constraints(client: Client, beams: Model) -> None:
    asked = {"text": SECOND, "target": "de", "constraints": ["Hund", "rotes Gebäude"]}
    for order in ("ordered", "unordered"):
        answer = client.post("/v1/translate", {**asked, "options": {"constraint_order": order, "num_hypotheses": 2}})
        (sentence,) = answer["translations"][0]["sentences"]
        expected = beams.translate(
            SECOND, constraints=asked["constraints"], constraint_order=order, num_hypotheses=2, return_scores=True
        )
        assert answer["decoder"] == "fast-beam" and "rotes Gebäude" in sentence["text"]
        assert (sentence["text"], sentence["score"]) == (expected.text, expected.score)
        assert [other["text"] for other in sentence["alternatives"]] == [o.text for o in expected.alternatives]
    for changes, message in (
        ({"text": f"{FIRST} {SECOND}"}, "constraints are for one sentence, and the request has 2"),
        ({"options": {"sampling": True}}, "sampling"),
        ({"constraints": [""]}, "a phrase is empty"),
    ):
        status, _, answer = client.ask("POST", "/v1/translate", {**asked, **changes})
        assert status == 400 and message in answer["error"]


def test_drafts_save_iterations_and_never_change_the_output(client: Client, served: ServedModel) -> None:
    expected = served.model.translate([FIRST, SECOND])
    counts = []
    for drafts in (["nonsense", "Hund"], expected, expected[:1]):
        asked = {"text": f"{FIRST} {SECOND}", "target": "de", "drafts": drafts}
        (found,) = client.post("/v1/translate", asked)["translations"]
        assert [sentence["text"] for sentence in found["sentences"]] == expected
        counts.append(sum(sentence["iterations"] for sentence in found["sentences"]))
    assert counts[1] <= counts[0]


def test_requests_without_a_sentence_of_their_way() -> None:
    """No request has made the decoder yet that their options choose."""
    own = ServedModel(str(FOLDER), threads=1)
    with serving([own], Settings()) as client:
        for asked, decoder in (
            ({"text": FIRST, "drafts": [" "]}, "reuse"),
            ({"text": [], "options": {"beam": 5}}, "fast-beam"),
        ):
            answer = client.post("/v1/translate", {"target": "de", **asked})
            texts = [found["text"] for found in answer["translations"]]
            assert answer["decoder"] == decoder and texts == own.model.translate([FIRST] if asked["text"] else [])


def test_drafts_and_beams_where_the_decoder_searches_beams() -> None:
    own = ServedModel(str(FOLDER), None, {"decoder": "fast-beam"}, threads=1)
    own.load()

    def translated(options: dict[str, Any], drafts: list[str]) -> str:
        job = TextJob(own, options, drafts)
        return asyncio.run(job.translate(job.cut([GREEDY_ELSEWHERE])))[0].text

    beams, greedy = (own.model.translate(GREEDY_ELSEWHERE, beam=beam) for beam in (5, 1))
    assert beams != greedy and translated({}, []) == translated({}, [greedy]) == beams
    assert translated({"beam": 1}, []) == translated({"beam": 1}, [beams]) == greedy
    own.beam = 1  # --beam
    assert translated({}, []) == greedy and translated({"beam": 5}, []) == beams
    own.close()


def test_a_model_that_needs_the_servers_beam() -> None:
    own = ServedModel(str(FOLDER), None, {"decoder": "fast-beam", "diverse_beam_groups": "3"}, beam=6, threads=1)
    own.load()
    assert own.state == "ready", own.problem
    job = TextJob(own)
    assert asyncio.run(job.translate(job.cut([FIRST])))[0].text == own.model.translate(FIRST, beam=6)
    own.close()


def test_stream(client: Client, served: ServedModel) -> None:
    events = client.events({"text": f"{FIRST}\n{SECOND}", "target": "de"})
    kinds = [kind for kind, _ in events]
    assert kinds[0] == "begin" and kinds[-1] == "end" and set(kinds[1:-1]) == {"step"}
    assert events[0][1] == {"sentences": [{"source": FIRST, "separator": "\n"}, {"source": SECOND, "separator": ""}]}
    (found,) = events[-1][1]["translations"]
    assert found["text"] == "\n".join(served.model.translate([FIRST, SECOND]))
    for number, sentence in enumerate(found["sentences"]):
        steps = [step for kind, step in events if kind == "step" and step["sentence"] == number]
        assert steps[-1]["text"] == sentence["text"] and len(steps) == sentence["iterations"]
        assert all(step["accepted"] <= step["drafted"] for step in steps)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": "ru"}, "ru is not supported"),
        ({"target": "\ud800"}, "\\ud800 is not supported"),
        ({"text": None}, "text"),
        ({"txt": "x"}, "txt: no such field; did you mean text?"),
        ({"beam": 5}, "beam: no such field; give it in options"),
        ({"options": {"beem": 3}}, "options.beem: no such field; did you mean beam?"),
        ({"options": {"beam": "many"}}, "options.beam"),
        ({"options": {"max_len_b": 20.0}}, "options.max_len_b: Input should be a valid integer"),
        ({"options": {"sampling": "yes"}}, "options.sampling: Input should be a valid boolean"),
        ({"split": "no"}, "split: Input should be a valid boolean"),
        ({"text": "x" * 4001}, "may have 4000"),
        ({"constraints": ["x" * 4000]}, "may have 4000"),
        ({"text": "a \ud800 b"}, "text: has '\\ud800' at 2, which is half of a character"),
    ],
)
def test_wrong_requests_are_refused(client: Client, changes: dict[str, Any], message: str) -> None:
    for path in ("/v1/translate", "/v1/stream"):
        status, _, answer = client.ask("POST", path, {"text": FIRST, "target": "de", **changes})
        assert status == 400 and message in answer["error"]


@pytest.mark.parametrize(
    "changes",
    [
        {f"field{number}": 1 for number in range(20_000)},
        {"options": {f"option{number}": 1 for number in range(20_000)}},
        {"drafts": [1] * 60_000},
        {"text": [1] * 60_000},
    ],
    ids=["fields", "options", "drafts", "texts"],
)
def test_many_wrong_values_are_one_error(changes: dict[str, Any]) -> None:
    """Making an error of each would hold the server for seconds."""
    with pytest.raises(ValidationError) as raised:
        V1Request.model_validate({"text": FIRST, "target": "de", **changes})
    assert raised.value.error_count() <= 2  # of a text, or several


def test_a_body_that_is_no_json(client: Client) -> None:
    status, _, answer = client.ask("POST", "/v1/translate", b"{nope", Content_Type="application/json")
    assert (status, answer["error"][:19]) == (400, "the body: not JSON:")
    deep = b"[" * 100_000
    for body, problem in ((b'{"text": "K\xe4se"}', "'utf-8' codec can't decode"), (deep, "nested too deeply")):
        status, _, answer = client.ask("POST", "/v1/translate", body, Content_Type="application/json")
        assert status == 400 and answer["error"].startswith(f"the body: not JSON: {problem}")
    for kind in ("application/x-www-form-urlencoded", "text/plain"):  # the first is that of `curl -d`
        status, _, answer = client.ask("POST", "/v1/translate", b'{"text": "x", "target": "de"}', Content_Type=kind)
        assert status == 400 and answer["error"].endswith("send JSON with Content-Type: application/json")


@pytest.mark.parametrize("text", [FIRST, "", " "])
@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("/v1/translate", {"beam": 9}, "samples up to 8"),
        ("/v1/translate", {"sampling_topk": 3}, "is for sampling"),
        ("/v1/translate", {"temperature": 0}, "give a number above 0"),
        ("/v1/translate", {"num_hypotheses": 2}, "num_hypotheses=2"),
        ("/v1/stream", {"beam": 3}, "none grows by itself"),
        ("/v1/stream", {"sampling": True, "beam": 3}, "a stream is of one sample"),
    ],
)
def test_options_that_do_not_fit_are_errors_of_the_request(
    client: Client, path: str, options: dict[str, Any], message: str, text: str
) -> None:
    asked = {"text": text, "target": "de", "options": options}
    if path == "/v1/stream":
        kind, answer = client.events(asked)[-1]
        assert kind == "error"
    else:
        status, _, answer = client.ask("POST", path, asked)
        assert status == 400
    assert message in answer["error"]


def test_models(client: Client) -> None:
    good, broken = client.get("/v1/models")
    assert good["engine"].startswith("continuous batches, native: ")
    assert (good["source"], good["target"], good["decoder"], good["lossless"]) == ("en", "de", "gad", True)
    assert (good["state"], good["problem"]) == ("ready", "")
    assert broken["state"] == "broken" and broken["target"] == "fr" and "no such folder" in broken["problem"]
    assert "/nonexistent" not in str(broken)
    assert "/v1/stream" in client.get("/openapi.json")["paths"]
