"""Sentences join and leave a running batch, and each has the output, scores and iterations that it has alone."""

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from fairseq_plugins.decoding.native import kernels
from tests.decoding.native.test_generator import EOS, PAD, UNK, VOCABULARY, Call, beams, copies, greedy, heads, trained
from tests.support import Options, make_task, make_transformer

SHARED = {"pad": PAD, "unk": UNK, "eos": EOS, "first_token": EOS}
MAX_SOURCE, MAX_LEN, MAX_BEAM = 40, 300, 5
WIDTH = 4  # of a trained drafter's drafts
BROKEN = VOCABULARY - 1  # a source token
DECODERS = {
    "greedy": greedy,
    "tokens": trained,
    "own encoder": lambda: trained(src_embedding_copy=True),
    "features": lambda: trained(drafter_context="features"),
    "heads": heads,
    "reuse": copies,
    "reuse in full": lambda: Call(Options("reuse")),
    "jacobi": lambda: Call(Options("jacobi")),
    "hybrid-jacobi": lambda: Call(Options("hybrid-jacobi", 4)),
    "iad": lambda: Call(Options("iad")),
    "beams": lambda: beams(),
}


def sentences(call: Call, count: int) -> list[dict[str, Any]]:
    """Return random arguments of `admit`."""
    choose = random.Random(1)
    found = []
    for number in range(count):
        tokens = [choose.randrange(4, VOCABULARY) for _ in range(choose.choice([1, 4, 9, 30]))]
        longest = choose.choice([0, 3, 12, 60, MAX_LEN if number == 3 else 9])
        drafts = [[choose.randrange(4, VOCABULARY) for _ in range(9)] for _ in range(choose.choice([0, 0, 2]))]
        found.append(
            {
                "source": [*tokens, EOS],
                "min_len": min(longest, choose.choice([1, 1, 8])),
                "max_len": longest,
                "unk_penalty": choose.choice([0.0, 1.5, -2.0]),
                # Later sentences have their best tokens only.
                "temperature": choose.choice([1.0, 1.0, 0.7, 20.0]) if number < 20 else 1.0,
                "beam": choose.choice([1, 3, MAX_BEAM]) if call.parts["beam"] else 1,
                "prefix": choose.choice([[], [], [7], [PAD, 9]]),
                "drafts": drafts if call.parts["drafter"] is not None else [],
                "noise_key": []
                if call.parts["beam"] or number % 3 or number >= 20
                else [number, choose.randrange(4), 5, 7],
                "topk": choose.choice([0, 0, 9]),
                "topp": choose.choice([0.0, 0.0, 0.8]),
                "needs_log_probs": choose.choice([False, True, True]),
            }
        )
    return found


def alone(call: Call, wanted: dict[str, Any]) -> Any:
    """Decode a sentence in a batch of its own."""
    parts = {**call.parts, "beam": wanted["beam"] if call.parts["beam"] else 0}
    made = kernels().Generator(**parts)
    prefix = wanted["prefix"][: wanted["max_len"]]
    made.begin([kernels().Sentence(**{**wanted, "prefix": prefix})], **SHARED)
    if call.parts["beam"]:
        return without_arrays(made.run_beams()[0])  # of the only sentence
    drafts, has_ended = [], False
    while not has_ended:
        has_ended = made.run(1)
        drafts += [(drafted, accepted) for _, drafted, accepted, _ in made.last_iteration()]
    [(tokens, log_probs, emitted)] = made.outputs()
    return tokens.tolist(), log_probs.tolist(), emitted, drafts


def without_arrays(output: tuple[list[tuple], int]) -> tuple[list[tuple], int]:
    """Return the hypotheses and the number of steps of a beam search, in numbers that can be compared."""
    hypotheses, steps = output
    return [(tokens.tolist(), log_probs.tolist(), score) for tokens, log_probs, score in hypotheses], steps


def tokens_of(call: Call, output: Any) -> list[list[int]]:
    """Return the tokens of all hypotheses of an event, or of `alone`."""
    hypotheses = output[0] if call.parts["beam"] else [output]
    return [list(hypothesis[0]) for hypothesis in hypotheses]


def opened(call: Call, threads: int = 2, max_sentences: int = 6, max_source: int = MAX_SOURCE) -> Any:
    parts = {**call.parts, "beam": MAX_BEAM if call.parts["beam"] else 0}
    made = kernels().Generator(**parts)
    made.open(**SHARED, threads=threads, max_sentences=max_sentences, max_source=max_source, max_len=MAX_LEN)
    return made


def admit(made: Any, number: int, wanted: dict[str, Any], streams: bool = False) -> None:
    made.admit(number, kernels().Sentence(**wanted), streams=streams)


def events_until(made: Any, count: int) -> list[tuple]:
    """Return events until `count` sentences have ended."""
    events: list[tuple] = []
    deadline = time.monotonic() + 60
    while count > 0:
        assert time.monotonic() < deadline, f"{count} sentences have not ended"
        taken = made.take(0.1)
        events += taken
        count -= sum(iteration is None for _, _, iteration, _ in taken)
    return events


@pytest.mark.parametrize("name", DECODERS)
def test_output_is_that_of_the_sentence_alone(name: str) -> None:
    call = DECODERS[name]()
    wanted = sentences(call, 40)
    is_exact = call.parts["policy"] is None  # a policy drafts as much as pays, which depends on the batch
    made = opened(call)
    choose = random.Random(2)
    events = []
    for number, sentence in enumerate(wanted):
        admit(made, number, sentence, streams=number % 2 == 0)
        if choose.random() < 0.2:
            events += made.take(0.01)
    events += events_until(made, len(wanted) - sum(iteration is None for _, _, iteration, _ in events))
    made.close()
    ends = {number: output for number, output, iteration, error in events if iteration is None and error is None}
    assert len(ends) == len(wanted) == sum(iteration is None for _, _, iteration, _ in events)
    for number, sentence in enumerate(wanted):
        expected = alone(call, sentence)
        if call.parts["beam"]:
            assert without_arrays(ends[number]) == expected
            continue
        tokens, log_probs, emitted = ends[number]
        assert tokens.tolist() == expected[0] and sum(emitted) == len(tokens)
        assert not sentence["needs_log_probs"] or log_probs.tolist() == expected[1]
        # Near its limit fewer tokens are drafted, and masks see each other: those that other sentences need, too.
        room = WIDTH if name in ("tokens", "own encoder") else 0
        early = sum(sum(emitted[:step]) <= sentence["max_len"] - room for step in range(len(emitted)))
        assert not is_exact or emitted[:early] == expected[2][:early]
        steps = [(output, iteration) for id_, output, iteration, _ in events if id_ == number and iteration is not None]
        assert not steps or number % 2 == 0
        if number % 2 == 0:
            assert [token for output, _ in steps for token in output] == tokens.tolist()
            assert [len(output) for output, _ in steps] == emitted
            assert not is_exact or [iteration for _, iteration in steps[:early]] == expected[3][:early]


@pytest.mark.parametrize("make", [greedy, beams])
def test_a_cancelled_sentence_has_no_end(make: Callable[[], Call]) -> None:
    call = make()
    made = opened(call, threads=1, max_sentences=2)
    endless = {**sentences(call, 1)[0], "min_len": MAX_LEN, "max_len": MAX_LEN, "prefix": []}
    wanted = [{**endless, "source": [4 + number % 20, 9, EOS]} for number in range(50)]
    for number, sentence in enumerate(wanted):
        admit(made, number, sentence, streams=True)
    assert sum(made.load()) == 50
    while made.load()[1] == 0:
        time.sleep(1e-3)
    kept = {7, 30}
    for number in set(range(50)) - kept:
        made.cancel(number)
    made.cancel(12345)
    ends: dict[int, Any] = {}
    deadline = time.monotonic() + 60
    reported = made.take(0)  # before they were cancelled
    while len(ends) < len(kept):
        assert time.monotonic() < deadline
        ends |= {number: output for number, output, iteration, _ in reported if iteration is None and number in kept}
        reported = made.take(0.1)
        assert {number for number, _, _, _ in reported} <= kept
    for number, output in ends.items():
        # Nothing of the cancelled ones is left in its slot.
        assert tokens_of(call, output) == tokens_of(call, alone(call, wanted[number]))
    while made.load() != (0, 0):
        assert time.monotonic() < deadline


def test_sentences_in_the_places_of_cancelled_ones_have_their_own_scores() -> None:
    """Log-probabilities of the cancelled ones would follow later; with another temperature they do not."""
    call = greedy()
    made = opened(call, threads=1, max_sentences=1)
    lengths = {"min_len": MAX_LEN, "max_len": MAX_LEN, "prefix": [], "noise_key": []}
    cancelled = {**sentences(call, 1)[0], **lengths, "temperature": 1.0, "needs_log_probs": True}
    other = {**cancelled, "temperature": 0.7}
    expected = alone(call, other)[:3]
    deadline = time.monotonic() + 60
    for number in range(4):
        admit(made, number, cancelled, streams=True)
        while not made.take(0.1):
            assert time.monotonic() < deadline
        made.cancel(number)
        admit(made, 100 + number, other)
        ends: dict[int, Any] = {}
        while 100 + number not in ends:  # the first one may end before it is cancelled
            ends |= {found: output for found, output, iteration, _ in events_until(made, 1) if iteration is None}
        tokens, log_probs, emitted = ends[100 + number]
        assert (tokens.tolist(), log_probs.tolist(), emitted) == expected


@pytest.mark.parametrize("make", [greedy, beams])
def test_memory_that_a_long_sentence_gives_back_is_its_own(make: Callable[[], Call]) -> None:
    """The sentence in the next slot goes on."""
    call = make()
    made = opened(call, threads=1, max_sentences=3, max_source=MAX_LEN)
    first = {**sentences(call, 1)[0], "prefix": []}
    wanted = [{**first, "min_len": length, "max_len": length} for length in (MAX_LEN - 20, MAX_LEN)]
    for number, sentence in enumerate(wanted):
        admit(made, number, sentence)
    ends = {number: tokens_of(call, output) for number, output, _, _ in events_until(made, 2)}
    assert ends == {number: tokens_of(call, alone(call, sentence)) for number, sentence in enumerate(wanted)}


@pytest.mark.parametrize("decoder", ["greedy", "beams"])
def test_an_error_of_one_sentence_harms_no_other(decoder: str) -> None:
    """One word of the source makes all scores NaN."""
    task = make_task(VOCABULARY)
    model = make_transformer(task, 1)
    model.encoder.embed_tokens.weight.data[BROKEN] = torch.nan
    call = Call(Options("greedy" if decoder == "greedy" else "fast-beam"), [model], beam=3)
    wanted = [
        {**sentence, "source": [min(token, BROKEN - 1) for token in sentence["source"]]}
        for sentence in sentences(call, 30)
    ]
    broken = {**wanted[0], "source": [5, BROKEN, EOS], "max_len": 9}
    made = opened(call, threads=1)
    for number, sentence in enumerate(wanted):
        admit(made, number, sentence, streams=True)
        if number % 10 == 5:
            admit(made, -number, broken, streams=True)
    events = events_until(made, 33)
    ends = {number: (output, error) for number, output, iteration, error in events if iteration is None}
    for number, sentence in enumerate(wanted):
        output, error = ends[number]
        assert error is None
        found = without_arrays(output) if decoder == "beams" else output[0].tolist()
        assert found == (alone(call, sentence) if decoder == "beams" else alone(call, sentence)[0])
        steps = [tokens for id_, tokens, iteration, _ in events if id_ == number and iteration is not None]
        assert decoder == "beams" or [token for tokens in steps for token in tokens] == found
    for number in (-5, -15, -25):
        output, error = ends[number]
        assert output is None and "NaN" in error[0] and not error[1]


def test_threads_take_places_that_others_leave_after_an_error() -> None:
    """A sentence that ends when it is decoded again is done with its place, which another thread's may take at once."""
    model = make_transformer(make_task(VOCABULARY), 1)
    model.encoder.embed_tokens.weight.data[BROKEN] = torch.nan
    call = Call(Options("greedy"), [model])
    one = {**sentences(call, 1)[0], "max_len": 1, "min_len": 1, "prefix": [], "noise_key": []}
    made = opened(call, threads=2, max_sentences=12)
    for number in range(6000):
        admit(made, number, {**one, "source": [5, BROKEN if number % 3 == 0 else 9, EOS]})
    events = events_until(made, 6000)
    assert sorted(number for number, *_ in events) == list(range(6000))
    assert all((error is not None) == (number % 3 == 0) for number, _, _, error in events)


def test_cancelling_while_sentences_are_decoded_again_after_an_error() -> None:
    model = make_transformer(make_task(VOCABULARY), 1)
    model.encoder.embed_tokens.weight.data[BROKEN] = torch.nan
    call = Call(Options("greedy"), [model])
    made = opened(call, threads=1)
    endless = {**sentences(call, 1)[0], "min_len": MAX_LEN, "max_len": MAX_LEN, "prefix": [], "source": [5, 9, EOS]}
    for number in range(1, 20):
        admit(made, number, endless)
        admit(made, -number, {**endless, "source": [5, BROKEN, EOS]})
        time.sleep(number * 5e-4)  # the first one is decoded again then, or once more
        made.cancel(number)
        deadline = time.monotonic() + 60
        while made.load() != (0, 0):
            assert time.monotonic() < deadline
        made.take(0)


def test_forbidden_eos_is_an_error_of_its_own() -> None:
    model = make_transformer(make_task(VOCABULARY), 1)
    model.decoder.output_projection.bias = torch.nn.Parameter(torch.zeros(VOCABULARY))
    model.decoder.output_projection.bias.data[EOS] = -torch.inf
    call = Call(Options("fast-beam"), [model], beam=3)
    made = opened(call, threads=1)
    admit(made, 1, {**sentences(call, 1)[0], "min_len": 1, "max_len": 3})
    assert events_until(made, 1) == [(1, None, None, ("EOS is forbidden at the maximum length", True))]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": []}, "no token"),
        ({"source": [5] * (MAX_SOURCE + 1)}, "more than there is room"),
        ({"source": [VOCABULARY, EOS]}, "outside of the vocabulary"),
        ({"source": [-1, EOS]}, "outside of the vocabulary"),
        ({"max_len": MAX_LEN + 1}, "lengths are not possible"),
        ({"min_len": 9, "max_len": 8}, "lengths are not possible"),
        ({"temperature": 0.0}, "temperature"),
        ({"beam": 0}, "beam"),
        ({"beam": MAX_BEAM + 1}, "beam"),
        ({"prefix": [VOCABULARY]}, "prefix"),
        ({"drafts": [[2**40]]}, "draft"),
        ({"noise_key": [1, 2, 3]}, "four numbers"),
        ({"suppressed": [7, 5]}, "in ascending order"),
    ],
)
def test_sentences_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    call = beams()
    made = opened(call, threads=1)
    good = {**sentences(call, 1)[0], "max_len": 9, "min_len": 1}
    with pytest.raises(ValueError, match=message):
        admit(made, 1, {**good, **changes})
    admit(made, 2, good)
    assert events_until(made, 1)[0][0] == 2


def test_two_threads_may_close() -> None:
    """As those of a service that is closed while its batch fails."""
    call = greedy()
    for _ in range(8):
        made = opened(call, threads=4)
        for number, sentence in enumerate(sentences(call, 12)):
            admit(made, number, sentence)
        with ThreadPoolExecutor(2) as pool:
            for closing in [pool.submit(made.close) for _ in range(2)]:
                closing.result()


def test_a_generator_is_open_once_and_closes_at_any_time() -> None:
    call = greedy()
    made = call.made()
    with pytest.raises(ValueError, match="no continuous batch is open"):
        admit(made, 1, sentences(call, 1)[0])
    made = opened(call)
    with pytest.raises(ValueError, match="decodes nothing else"):
        made.open(**SHARED, threads=1, max_sentences=1, max_source=9, max_len=9)
    for number, sentence in enumerate(sentences(call, 20)):
        admit(made, number, sentence)
    made.close()
    made.close()
    idle = opened(call)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(idle.take, 500)
        time.sleep(0.02)
        idle.close()
        assert waiting.result(60) == []
    with pytest.raises(ValueError, match="closed"):
        admit(made, 99, sentences(call, 1)[0])
    for threads, room in ((0, 9), (1, 0)):
        with pytest.raises(ValueError, match="needs threads and room"):
            call.made().open(**SHARED, threads=threads, max_sentences=1, max_source=room, max_len=9)
    opened(call)  # is closed when it is forgotten
