"""What test_sanitizers.py runs in a process of its own, on kernels built with sanitizers: right calls and wrong ones.

Usage: python -m tests.decoding.engine.sanitizer_driver ROUNDS SEED

First it makes every call of `FAULTS`, past all checks, in a process of its own, and prints how these ended: the
sanitizer has to report and to end them. After the line `RANDOM` come so many rounds of random calls.
"""

import ctypes
import os
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from fairseq_plugins.decoding.engine.native.beam import run_beams
from fairseq_plugins.decoding.engine.native.kernels import Kernels, Packing
from fairseq_plugins.decoding.engine.native.layers import IN_PANELS, NativeLinear, Prediction
from fairseq_plugins.decoding.engine.native.source import NativeLinears, encode

from fairseq_plugins.decoding.constraints import Constraints
from fairseq_plugins.decoding.engine.layout import Chain, Span, StepLayout
from fairseq_plugins.decoding.engine.rows import rows_of
from fairseq_plugins.decoding.engine.weights import Precision
from fairseq_plugins.models.transition import TransitionScores
from tests.decoding.engine.random_steps import (
    EOS,
    PAD,
    UNK,
    Sizes,
    Step,
    random_beams,
    random_ends,
    random_layers,
    random_linear,
    random_step,
    step_in_pytorch,
)
from tests.decoding.methods.test_blockwise import make_blockwise
from tests.support import (
    Options,
    all_ids,
    decode,
    fairseq_beam,
    make_drafter,
    make_sample,
    make_task,
    make_transformer,
)


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=2e-3)


def right_step(kernels: Kernels, choose: random.Random) -> None:
    """A step of random sizes gives what PyTorch gives."""
    sizes = Sizes.some(choose)
    layers, ends = random_layers(sizes), random_ends(sizes, choose.choice([None, 1, 5, 64]))
    native = kernels.layers(layers, ends=ends)
    batch = choose.randint(0, 5)
    packed = choose.random() < 0.5 and batch > 0
    step = random_step(sizes, choose, batch, choose.randint(1, 8), packed)
    projection = random_linear(sizes.width, sizes.vocabulary)
    constraints = Constraints(PAD, UNK, EOS, max_len=choose.choice([0, 3, 60]), min_len=choose.randint(0, 5))
    caches = step.cache.clone(), step.cache.clone()
    x, _, predicted = native.step(
        *(step.tokens, step.layout, caches[0], step.cross, step.cross_allowed),
        keep_states=choose.random() < 0.5,
        prediction=Prediction(kernels.compiled_linear(projection), kernels.limits(sizes.vocabulary, constraints)),
    )
    if len(step.tokens):
        close(x, step_in_pytorch(layers, ends, replace(step, cache=caches[1])))
        close(caches[0], caches[1])
        close(predicted.scores, F.linear(x, *projection))


def right_beams(kernels: Kernels, choose: random.Random) -> None:
    """A step of beam search gives the best of what PyTorch gives; the caches may have other sentences between."""
    sizes = Sizes.some(choose)
    layers, ends = random_layers(sizes), random_ends(sizes, choose.choice([None, 1, 5, 64]))
    batch, beam = choose.randint(1, 4), choose.randint(1, 4)
    step = random_beams(sizes, choose, batch, beam)
    layout, rows = step.layout, batch * beam
    projection, scores = random_linear(sizes.width, sizes.vocabulary), -torch.rand(rows)
    constraints = Constraints(PAD, UNK, EOS, choose.choice([0, 3, 60]), choose.randint(0, 5), choose.choice([0, 1, -1]))
    states = step_in_pytorch(layers, ends, replace(step, cache=step.cache.clone()))
    log_probs = F.linear(states, *projection).log_softmax(-1)
    constraints.apply(log_probs[:, None], layout.lengths, layout.span.shortest, layout.span.longest)
    total = (log_probs + scores[:, None]).view(batch, beam, -1)
    total[layout.lengths.view(batch, beam)[:, 0] == 0, 1:] = -torch.inf
    wanted = min(2 * beam, total[0].numel())
    expected = total.flatten(1).topk(wanted)[0]

    places, cache, cross, allowed = None, step.cache, step.cross, step.cross_allowed
    if choose.random() < 0.5:
        places = torch.randperm(batch + 2)[:batch]
        cache = cache.new_zeros(len(cache), (batch + 2) * beam, *cache.shape[2:])
        cross = cross.new_zeros(len(cross), batch + 2, *cross.shape[2:])
        cache[:, rows_of(places, beam)], cross[:, places] = step.cache, step.cross
        if allowed is not None:
            allowed = torch.ones(batch + 2, allowed.size(1), dtype=torch.bool)
            allowed[places] = step.cross_allowed
    found, tokens, parents = run_beams(
        *(kernels.layers(layers, ends=ends), step.tokens, layout, scores, cache, cross, allowed),
        *(kernels.compiled_linear(projection), kernels.limits(sizes.vocabulary, constraints), places),
    )
    close(found[:, :wanted].clamp(min=-1e30), expected.clamp(min=-1e30))
    there = found > -torch.inf
    assert torch.equal(there, parents >= 0)
    chosen = total.flatten(1).gather(1, parents.clamp(min=0) * sizes.vocabulary + tokens)
    close(chosen[there], found[there])
    order = (parents * sizes.vocabulary + tokens)[there]
    assert len((order + there.nonzero()[:, 0] * total[0].numel()).unique()) == len(order)


def right_source(kernels: Kernels, choose: random.Random) -> None:
    """Sources of random sizes, maybe without any token, are encoded, read for cross-attention and copied."""
    sizes = Sizes.some(choose)
    ends = random_ends(sizes, choose.choice([None, 1, 5, 64]))
    native = kernels.layers(random_layers(sizes, has_cross=False), ends=ends)
    tokens = torch.randint(choose.choice([PAD + 1, sizes.vocabulary]), (choose.randint(0, 5), choose.randint(1, 9)))
    embedding, encoded, padding = encode(native, tokens, choose.choice([PAD, -1]))
    assert bool(encoded.isfinite().all()) and not encoded[padding].any()
    linears = [random_linear(sizes.width, 24) for _ in range(choose.randint(1, 3))]
    projected = torch.empty(len(linears), *tokens.shape, 24)
    NativeLinears([kernels.compiled_linear(linear) for linear in linears])(encoded, projected)
    for ours, linear in zip(projected, linears, strict=True):
        close(ours, F.linear(encoded, *linear))
    task = make_task(30)
    copy = kernels.source_copy(make_drafter(task, 1, src_embedding_copy=True).decoder)
    source = torch.randn(*tokens.shape, 16)
    assert bool(copy(choose.randint(1, 90), source, padding).isfinite().all())


def right_rest(kernels: Kernels, choose: random.Random) -> None:
    """Linear layers, log-probabilities, best tokens, acceptance and paths give what PyTorch gives."""
    inputs, outputs, rows = choose.randint(1, 70), choose.randint(1, 70), choose.randint(0, 30)
    layer, x = random_linear(inputs, outputs), torch.randn(rows, inputs)
    close(kernels.compiled_linear(layer)(x), F.linear(x, *layer))
    if kernels.functions.has_int8_products():
        kernels.compiled_linear(layer, Precision.INT8_PRODUCTS)(x)

    scores = torch.randn(rows, choose.randint(1, 200))
    best = kernels.argmax(scores)
    assert torch.equal(best, scores.argmax(-1)) if rows else best.numel() == 0
    mine = scores.clone()
    assert kernels.log_softmax(mine)
    close(mine, scores.log_softmax(-1))
    # Only that nothing is read or written elsewhere.
    odd = float(choose.choice(["nan", "inf", "-inf"]))
    scores[torch.rand_like(scores) < choose.choice([0.1, 1])] = odd
    best = kernels.argmax(scores)
    assert bool(((best >= 0) & (best < scores.size(1))).all())

    width = choose.randint(1, 8)
    best, drafted = torch.randint(4, (rows, width)), torch.randint(4, (rows, width - 1))
    meant = torch.randint(-3, width + 3, (rows,)) if choose.random() < 0.5 else None
    emitted, accepted, finished = kernels.accept_exact(best, drafted, meant, EOS)
    assert bool(((emitted >= 1) & (emitted <= width) & (accepted >= 0) & (accepted < width)).all() | (rows == 0))

    size, rank, known = choose.randint(1, 40), choose.randint(1, 20), choose.randint(40, 60)
    transition = random_transition(known, rank, inputs, choose.choice([0, 1, 7, 16]))
    ids = torch.randperm(known)[:size]
    scores, hidden = torch.randn(rows, width, size), torch.randn(rows, width, inputs)
    first = torch.randint(known, (rows,))
    if rows:
        chosen, log_probs = kernels.path(transition, ids)(scores, hidden, first, choose.random() < 0.5)
        wanted, expected = transition.choose(scores, hidden, first, log_probs is not None, ids)
        assert torch.equal(chosen, wanted)
        if log_probs is not None:
            close(log_probs, expected)
    by_itself, _ = kernels.path(None, ids)(scores, hidden, first, False)
    assert torch.equal(by_itself, ids[scores.argmax(2)] if rows else by_itself)


class Loops:
    """Whole batches through the loop in one call, which fairseq's own search is the measure of."""

    def __init__(self) -> None:
        self.task = make_task(30)
        self.verifier = make_transformer(self.task, 3, decoder_layers=2)
        options = {"drafter_context": "features", "transition_rank": 4, "transition_state": 5}
        self.drafter = make_drafter(self.task, 4, block_size=9, verifier=self.verifier, **options)
        self.blockwise = [make_blockwise(5, 30, identity_first_head=identity)[1] for identity in (True, False)]

    def run(self, choose: random.Random) -> None:
        """Decode a random batch."""
        lengths = [choose.randint(0, 20) for _ in range(choose.randint(1, 12))]
        sample = make_sample(self.task, lengths, choose.randint(0, 9))
        search = {"max_len_b": choose.choice([1, 9, 60])}
        decoder = choose.choice(["greedy", "gad", "iad", "fast-beam", "jacobi", "gs-jacobi", "hybrid-jacobi"])
        how = Options(decoder, choose.choice([1, 9]) if decoder in ("gad", "gs-jacobi", "hybrid-jacobi") else None)
        beam = choose.choice([1, 2, 5]) if decoder == "fast-beam" else 1
        ours, _ = decode([self.verifier], self.task, sample, how, self.drafter, beam_size=beam, **search)
        assert all_ids(ours) == all_ids(fairseq_beam([self.verifier], self.task, sample, beam, **search))
        # Only that nothing is read or written elsewhere: tests/decoding/test_one_call.py says what comes out.
        beta, tau = choose.choice([1, 30]), choose.choice([0.1, 50.0])
        relaxed = Options("gad++", choose.choice([1, 9]), top_beta=beta, tau=tau)
        decode([self.verifier], self.task, sample, relaxed, self.drafter, **search)
        heads = Options("blockwise", choose.choice([2, 4]))
        decode([choose.choice(self.blockwise)], self.task, sample, heads, **search)


def random_transition(vocabulary: int, rank: int, width: int, state: int) -> TransitionScores:
    """Scores that all of a path's tokens matter to."""
    transition = TransitionScores(vocabulary, rank, width, state).eval().requires_grad_(False)
    for parameter in transition.parameters():
        torch.nn.init.normal_(parameter)
    return transition


def wrong_step(kernels: Kernels, choose: random.Random) -> str:
    """A step with one thing wrong is refused, or does no harm; returns which and what became of it."""
    sizes = Sizes.some(choose)
    native = kernels.layers(random_layers(sizes), ends=random_ends(sizes))
    packed = choose.random() < 0.5
    step = random_step(sizes, choose, choose.randint(1, 4), choose.randint(1, 5), packed)
    projection = kernels.compiled_linear(random_linear(sizes.width, sizes.vocabulary))
    limits = kernels.limits(sizes.vocabulary, Constraints(PAD, UNK, EOS, max_len=60))
    given: dict[str, Any] = {
        **vars(step),
        **{"masks": 0, "fed": None, "added": None, "projection": projection, "limits": limits},
    }
    name = choose.choice(sorted(FLAWS))
    FLAWS[name](given, step, sizes, choose)
    prediction = Prediction(given.pop("projection"), given.pop("limits"))
    try:
        native.step(**given, prediction=prediction)
    except (ValueError, RuntimeError, IndexError) as error:
        return f"{name}: {type(error).__name__}"
    return f"{name}: done"


def _odd(choose: random.Random) -> int:
    return choose.choice([-(2**63), -(2**40), -2, -1, 20, 10**6, 2**31, 2**40, 2**62, 2**63 - 1])


def _replace_in(name: str, convert: Callable[[torch.Tensor, random.Random], torch.Tensor]) -> Callable[..., None]:
    def flaw(given: dict[str, Any], step: Step, sizes: Sizes, choose: random.Random) -> None:
        if given[name] is not None:
            given[name] = convert(given[name], choose)

    return flaw


def _put_odd(numbers: torch.Tensor, choose: random.Random) -> torch.Tensor:
    numbers = numbers.clone()
    if numbers.numel():
        numbers.view(-1)[choose.randrange(numbers.numel())] = _odd(choose)
    return numbers


def _odd_layout(given: dict[str, Any], step: Step, sizes: Sizes, choose: random.Random) -> None:
    layout = step.layout
    if isinstance(layout, Chain):
        last = torch.zeros(len(layout.lengths), layout.width, dtype=torch.long)
        given["layout"] = choose.choice(
            [
                replace(layout, lengths=_put_odd(layout.lengths, choose)),
                replace(layout, lengths=layout.lengths[:-1]),
                replace(layout, lengths=layout.lengths.int()),
                replace(layout, width=choose.choice([-1, 0, layout.width + 1])),
                replace(layout, span=Span(0, choose.choice([-30, -1, 500]))),
                replace(layout, last_visible=_put_odd(last, choose)),
                replace(layout, last_visible=last[:, :-1]),
            ]
        )
        return
    name = choose.choice(["sentence", "position", "slot", "last_visible"])
    array = getattr(layout, name)
    given["layout"] = choose.choice(
        [
            replace(layout, **{name: _put_odd(array, choose)}),
            replace(layout, **{name: array[:-1]}),
            replace(layout, **{name: array.int()}),
            replace(layout, **{name: array[:, None]}),
            replace(layout, slots=choose.choice([-1, 0, 500])),
        ]
    )


def _other_layout(given: dict[str, Any], step: Step, sizes: Sizes, choose: random.Random) -> None:
    layout = step.layout
    if isinstance(layout, Chain):
        given["layout"] = layout.spelled_out()
    else:
        given["layout"] = Chain(torch.zeros(2, dtype=torch.long), Span(0, 0), max(1, len(step.tokens) // 2))


def _masks(given: dict[str, Any], step: Step, sizes: Sizes, choose: random.Random) -> None:
    """Masks beside a layout with as many rows more, so that only the masks themselves are wrong."""
    masks = choose.choice([-2, -1, 1, 3])
    given["masks"] = masks
    rows = max(0, len(step.tokens) + masks)
    zeros = torch.zeros(rows, dtype=torch.long)
    if isinstance(step.layout, StepLayout):
        given["layout"] = StepLayout(zeros, zeros, zeros, zeros, step.layout.slots)
    else:
        given["layout"] = replace(step.layout, width=step.layout.width + masks)
    given["fed"] = choose.choice([None, torch.randn(sizes.width), torch.randn(sizes.width + 1), torch.randn(0)])


def _fed(given: dict[str, Any], step: Step, sizes: Sizes, choose: random.Random) -> None:
    given["tokens"] = torch.full_like(step.tokens, sizes.vocabulary)
    sentences, positions = choose.choice([0, 1, 5]), choose.choice([0, 1, 20])
    given["fed"] = choose.choice(
        [
            torch.randn(sentences, positions, sizes.width),
            torch.randn(1, 1, sizes.width).expand(sentences, positions, -1),
            torch.randn(sentences, positions, 2 * sizes.width)[..., ::2],
            torch.randn(positions, sizes.width),
            torch.randn(sizes.width).double(),
        ]
    )


def _added(given: dict[str, Any], step: Step, sizes: Sizes, choose: random.Random) -> None:
    shape = choose.choice(
        [
            (1, sizes.width),
            (len(step.tokens), sizes.width),
            (len(step.tokens), 1, sizes.width),
            (1, len(step.tokens), sizes.width),
            (0, 1, sizes.width),
            (sizes.width,),
        ]
    )
    given["added"] = torch.randn(shape)


def _odd_limits(given: dict[str, Any], step: Step, sizes: Sizes, choose: random.Random) -> None:
    setattr(given["limits"], choose.choice(["pad", "unk", "eos", "vocabulary", "min_len", "max_len"]), _odd(choose))


def _odd_projection(given: dict[str, Any], step: Step, sizes: Sizes, choose: random.Random) -> None:
    inputs, outputs = sizes.width + choose.choice([-1, 0, 1]), sizes.vocabulary + choose.choice([-1, 0, 1])
    given["projection"] = NativeLinear(given["projection"].kernels, random_linear(max(1, inputs), outputs), IN_PANELS)


# What may be wrong with a step: changes its arguments.
FLAWS: dict[str, Callable[[dict[str, Any], Step, Sizes, random.Random], None]] = {
    "tokens outside of the vocabulary": _replace_in("tokens", _put_odd),
    "tokens of another shape": _replace_in(
        "tokens", lambda x, choose: choose.choice([x[:-1], x[None], x.flatten()[:1], x[..., :-1], x[..., None]])
    ),
    "tokens of another type": _replace_in("tokens", lambda x, choose: choose.choice([x.int(), x.float()])),
    "cache of another shape": _replace_in(
        "cache",
        lambda x, choose: choose.choice(
            [x[:-1], x[:, :-1], x[:, :, :-4], x[:, :, :0], x[..., :-1], x[0], x[:, :0], x.flatten(4), x[:, :, ::2]]
        ),
    ),
    "cache of another type": _replace_in("cache", lambda x, choose: choose.choice([x.half(), x.double()])),
    "source of another shape": _replace_in(
        "cross",
        lambda x, choose: choose.choice([x[:-1], x[:, :-1], x[:, :, :0], x[:, :, :-1], x[..., :-1], x[0], x[:, :0]]),
    ),
    "source of another type": _replace_in("cross", lambda x, choose: x.half()),
    "no source": lambda given, step, sizes, choose: given.update(cross=None),
    "mask of another shape": lambda given, step, sizes, choose: given.update(
        cross_allowed=torch.ones(choose.choice([0, 1, 9]), choose.choice([0, 1, 9]), dtype=torch.bool)
    ),
    "mask of another type": lambda given, step, sizes, choose: given.update(
        cross_allowed=torch.ones(step.cross.shape[1:3])
    ),
    "layout with odd numbers": _odd_layout,
    "layout of another kind": _other_layout,
    "masks": _masks,
    "fed": _fed,
    "added": _added,
    "limits": _odd_limits,
    "projection": _odd_projection,
}


def wrong_rest(kernels: Kernels, choose: random.Random) -> str:
    """Other calls with one thing wrong."""
    long = torch.long
    calls: dict[str, Callable[[], object]] = {
        "linear of another width": lambda: kernels.compiled_linear(random_linear(9, 9))(torch.randn(3, 8)),
        "linear of another type": lambda: kernels.compiled_linear(random_linear(9, 9))(torch.randn(3, 9).double()),
        "bias of another length": lambda: kernels.compiled_linear((torch.randn(9, 9), torch.randn(8))),
        "linear without inputs": lambda: kernels.compiled_linear((torch.randn(9, 0), None)),
        "best of another type": lambda: kernels.accept_exact(
            torch.zeros(3, 4, dtype=torch.int32), torch.zeros(3, 3, dtype=long), None, EOS
        ),
        "drafted of another batch": lambda: kernels.accept_exact(
            torch.zeros(30, 4, dtype=long), torch.zeros(3, 3, dtype=long), None, EOS
        ),
        "numbers of another batch": lambda: kernels.accept_exact(
            torch.zeros(30, 4, dtype=long), torch.zeros(30, 3, dtype=long), torch.ones(2, dtype=long), EOS
        ),
        "path of unknown ids": lambda: kernels.path(random_transition(9, 2, 4, 3), torch.tensor([0, _odd(choose)])),
        "path of no ids": lambda: kernels.path(random_transition(9, 2, 4, 3), torch.arange(0)),
        "path after an unknown token": lambda: kernels.path(random_transition(9, 2, 4, 3), torch.arange(9))(
            torch.randn(1, 3, 9), torch.randn(1, 3, 4), torch.tensor([_odd(choose)]), True
        ),
        "path of other scores": lambda: kernels.path(random_transition(9, 2, 4, 3), torch.arange(9))(
            torch.randn(1, 3, 8), torch.randn(1, 3, 4), torch.tensor([0]), True
        ),
        "path of other states": lambda: kernels.path(random_transition(9, 2, 4, 3), torch.arange(9))(
            torch.randn(1, 3, 9), torch.randn(1, 3, 5), torch.tensor([0]), True
        ),
        "layers of other widths": lambda: kernels.layers(
            [*random_layers(Sizes(width=16)), *random_layers(Sizes(width=8))]
        ),
        "heads that do not divide": lambda: kernels.layers(
            [replace(layer, heads=3) for layer in random_layers(Sizes(width=16))]
        ),
        "no heads": lambda: kernels.layers([replace(layer, heads=0) for layer in random_layers(Sizes())]),
        "a part of cross-attention": lambda: kernels.layers(
            [replace(layer, **{choose.choice(["cross_out", "cross_norm"]): None}) for layer in random_layers(Sizes())]
        ),
        "embedding of another width": lambda: kernels.layers(
            random_layers(Sizes()), ends=replace(random_ends(Sizes()), embedding=torch.randn(40, 12))
        ),
        "positions of another width": lambda: kernels.layers(
            random_layers(Sizes()), ends=replace(random_ends(Sizes()), positions=torch.randn(40, 12))
        ),
        "no positions": lambda: kernels.layers(random_layers(Sizes()), ends=random_ends(Sizes(), positions=0)),
    }
    name = choose.choice(sorted(calls))
    try:
        calls[name]()
    except ValueError:
        return f"{name}: refused"
    raise AssertionError(f"{name}: not refused")


def too_small_output(kernels: Kernels) -> None:
    """y has one number too few."""
    layer, x, y = kernels.compiled_linear(random_linear(8, 16)), torch.randn(2, 8), torch.empty(31)
    kernels.functions.run_linear(ctypes.byref(layer.structure), x.data_ptr(), 2, y.data_ptr())


def too_few_scores(kernels: Kernels) -> None:
    """The first of the best is looked for after the end."""
    scores, best = torch.randn(9), torch.empty(1, dtype=torch.long)
    kernels.functions.choose_best(scores.data_ptr(), 1, 10, best.data_ptr())


def unaligned(kernels: Kernels) -> None:
    """Scores that begin in the middle of a number: undefined behaviour, but nowhere outside."""
    scores, best = torch.randn(9), torch.empty(1, dtype=torch.long)
    kernels.functions.choose_best(scores.data_ptr() + 2, 1, 8, best.data_ptr())


RANDOM = "random calls"
FAULTS = {function.__name__: function for function in (too_small_output, too_few_scores, unaligned)}


def _status_of(call: Callable[[], None]) -> int:
    """The exit status of a child process that makes a call."""
    process = os.fork()
    if process == 0:
        call()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def main(arguments: list[str]) -> None:
    kernels = Kernels.build()
    assert kernels is not None, "the kernels could not be built"
    for name, fault in FAULTS.items():
        print(f"{name} {_status_of(lambda fault=fault: fault(kernels))}", flush=True)
    for stream in (sys.stdout, sys.stderr):
        print(RANDOM, file=stream, flush=True)
    rounds, seed = int(arguments[0]), int(arguments[1])
    torch.manual_seed(seed)
    choose = random.Random(seed)
    seen: Counter[str] = Counter()
    loops = Loops()
    # The kernels ask PyTorch how many threads to run on. PyTorch's own, for layers as small as these, only wait.
    torch.set_num_threads(1)
    threads = mock.patch.object(torch, "get_num_threads").start()
    while seen["rounds"] < rounds:
        threads.return_value = choose.randint(1, 3)
        packing = Kernels(choose.choice(list(Packing)), kernels.functions)
        right_step(packing, choose)
        right_beams(packing, choose)
        right_source(packing, choose)
        right_rest(packing, choose)
        if seen["rounds"] % 4 == 0:
            loops.run(choose)
            seen["whole batches"] += 1
        for _ in range(3):
            seen[wrong_step(packing, choose)] += 1
            seen[wrong_rest(packing, choose)] += 1
        seen["rounds"] += 1
    assert threads.called
    for name, count in sorted(seen.items()):
        print(f"{count:6} {name}")


if __name__ == "__main__":
    main(sys.argv[1:])
