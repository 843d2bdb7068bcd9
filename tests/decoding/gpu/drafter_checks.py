"""Checks of drafters and acceptance rules of the GPU engine in Triton's interpreter, against the compiled kernels."""

import itertools
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from fairseq_plugins.decoding.constraints import Constraints
from fairseq_plugins.decoding.gpu import drafter as gpu_drafter
from fairseq_plugins.decoding.gpu.backend import GpuBackend
from fairseq_plugins.decoding.gpu.batch import Batch, Sizes
from fairseq_plugins.decoding.gpu.drafters import copying
from fairseq_plugins.decoding.gpu.drafters.copying import CopyDrafter
from fairseq_plugins.decoding.gpu.drafters.tokens import TokenDrafter
from fairseq_plugins.decoding.gpu.kernels.constants import Lookup
from fairseq_plugins.decoding.gpu.search import GreedySearch
from fairseq_plugins.decoding.native.backend import NativeBackend
from fairseq_plugins.decoding.reference.drafters import copying as reference
from fairseq_plugins.models.blockwise_transformer import BlockwiseTransformer, blockwise_transformer
from tests.decoding.gpu.watch import Watch
from tests.support import (
    SMALL,
    Options,
    SpecDecTask,
    both_sides,
    liven,
    make_args,
    make_drafter,
    make_sample,
    make_state,
    make_task,
    make_transformer,
)

TASK = make_task(14)
PAD, EOS, UNK = TASK.target_dictionary.pad(), TASK.target_dictionary.eos(), TASK.target_dictionary.unk()
PRE_NORM = both_sides(normalize_before=True)
GAD = {"fp32_drafts": True}
DRAFTS = [[[5, 6, 7, 8, 9]], [], [[8, 9], [6, 7, 8, 9, 10, 11]]]
PREFIX = torch.tensor([[5, 6, PAD], [7, PAD, PAD], [PAD, PAD, 9]])


def compare(
    how: Options,
    model: nn.Module | None = None,
    drafter: nn.Module | None = None,
    max_len: int = 6,
    prefix: Tensor | None = None,
    counts: bool = True,
    together: bool = False,
) -> None:
    """Compare tokens, log-probabilities and tokens of each iteration with those of the compiled kernels.

    Three sentences have two places. The reference decodes each by itself, unless `together`: at the maximum length, its
    drafts depend on other sentences.
    """
    model = make_transformer(TASK, 1, **SMALL) if model is None else model
    sample = {**make_sample(TASK, [3, 5, 2]), "drafts": DRAFTS}
    given = Constraints(pad=PAD, unk=UNK, eos=EOS, max_len=max_len, prefix=prefix)
    context = how.context([model], drafter, TASK)
    native = NativeBackend(how.spec, how.options, context)
    expected, emitted = [], []
    for rows in [slice(0, 3)] if together else [slice(row, row + 1) for row in range(3)]:
        part = {"net_input": {"src_tokens": sample["net_input"]["src_tokens"][rows]}, "drafts": DRAFTS[rows]}
        limits = replace(given, prefix=None if prefix is None else prefix[rows])
        decoded = native.decode(part, limits, EOS)
        expected += [hypothesis for [hypothesis] in decoded.outputs]
        emitted += map(list, decoded.emitted)
    result = GpuBackend(how.spec, how.options, context, active_sentences=2).decode(sample, given, EOS)
    for [ours], theirs in zip(result.outputs, expected, strict=True):
        assert ours.tokens.tolist() == theirs.tokens.tolist(), (ours, theirs)
        torch.testing.assert_close(ours.log_probs, theirs.log_probs, rtol=0, atol=1e-4)
    assert not counts or result.emitted == emitted, (result.emitted, emitted)
    assert not counts or max(map(max, emitted)) > 1, "no draft was accepted"


def accepting(block: int, how: Options) -> Options:
    """Accept the first `block` - 1 tokens of each draft, so that the outputs show what was drafted."""
    build = how.spec.build_kernels
    assert build is not None

    def build_kernels(context: Any, options: Any) -> Any:
        method = build(context, options)
        return replace(method, acceptance=method.weights.module.accept_at_least(block, method.acceptance))

    changed = Options(how.spec.name)
    changed.spec, changed.options = replace(how.spec, build_kernels=build_kernels), how.options
    return changed


def blockwise(heads: int, task: SpecDecTask = TASK, **options: Any) -> BlockwiseTransformer:
    """Return a random model with prediction heads."""
    torch.manual_seed(3)
    args = make_args(blockwise_heads=heads, **SMALL, **options)
    blockwise_transformer(args)
    return liven(BlockwiseTransformer.build_model(args, task))


def tokens_drafter(**options: Any) -> nn.Module:
    """Return a random drafter that reads tokens."""
    return make_drafter(TASK, 2, 3, drafter_context="tokens", transition_rank=0, **SMALL, **options)


# ------------------------------------------------------------------------------------------------------ copies


def _texts(lookup: Lookup, generator: random.Random) -> list[list[list[int]]]:
    """Return texts of six sentences: several drafts, or a source."""

    def text(most: int) -> list[int]:
        return [*generator.choices((4, 5, 6), k=generator.randrange(1, most)), EOS]

    if lookup == Lookup.NEAREST:
        return [[text(20) for _ in range(number % 4)] for number in range(6)]
    return [[text(40)] for _ in range(6)]


def check_copies() -> None:
    """Drafts from random texts that match often, after random outputs, against those of the loop in PyTorch."""
    width, most, device = 5, 30, torch.device("cpu")
    for lookup in Lookup:
        generator = random.Random(int(lookup))
        texts = _texts(lookup, generator)
        sizes = Sizes(len(texts), most, 64, width)
        batch = Batch(sizes, EOS + 1, device)
        batch.place_limits.copy_(torch.tensor([PAD, UNK, EOS, 0, most, 0, EOS, 0]))
        batch.active.fill_(1)
        max_match = reference.NEAREST_MAX_MATCH if lookup == Lookup.NEAREST else reference.MAX_MATCH
        drafter = CopyDrafter(lookup, max_match, width)
        search: Any = SimpleNamespace(sizes=sizes, device=device, runner=SimpleNamespace(launch={"PDL": False}))
        drafter.allocate(search)
        drafter.begin_batch([[EOS]] * len(texts), most, texts)
        drafter.take_places(batch, [(row, row) for row in range(len(texts))])
        if lookup != Lookup.NEAREST:
            for row, [source] in enumerate(texts):
                batch.source[row, : len(source)], batch.source_lengths[row] = torch.tensor(source), len(source)
        given = reference.draft_texts(texts)
        theirs = reference.CopyDrafter(lambda sample, given=given: given, lookup.name.lower(), width)
        theirs.start({}, None)
        outputs: list[list[int]] = [[] for _ in texts]
        for _ in range(4):
            tokens = torch.full((len(texts), sizes.columns), PAD)
            for row, output in enumerate(outputs):
                tokens[row, : len(output) + 1] = torch.tensor([EOS, *output])
            lengths = [len(output) for output in outputs]
            batch.tokens.copy_(tokens)
            batch.lengths.copy_(torch.tensor(lengths))
            drafter.draft(batch, len(texts), width)
            drafts = [row[:count] for row, count in zip(batch.draft.tolist(), batch.num_drafted.tolist(), strict=True)]
            draft = theirs.draft(make_state(tokens, lengths, most))
            assert draft.num_drafted is not None
            for row, count in enumerate(draft.num_drafted.tolist()):
                expected = draft.tokens[row, : min(count, most - lengths[row])].tolist()
                end = expected.index(EOS) + 1 if EOS in expected else len(expected)
                assert drafts[row] == expected[:end], (lookup, outputs[row], texts[row])
                kept = [token for token in drafts[row][: generator.randrange(width)] if token != EOS]
                outputs[row] = [*outputs[row], *kept, generator.randrange(4, 7)][:most]


def check_copying_methods() -> None:
    """Copies of sources and of given drafts, in batches with refilled places."""
    compare(accepting(3, Options("iad")))
    compare(accepting(2, Options("reuse", 4)))


# --------------------------------------------------------------------------------------------- other drafters


def check_jacobi() -> None:
    """Whole sentences, from the source; blocks up to a length."""
    compare(Options("jacobi", jacobi_init="source"), together=True)
    compare(Options("hybrid-jacobi", 4, jacobi_length=5))
    compare(Options("gs-jacobi", 10**12))


def check_heads() -> None:
    """All heads; head 1 with a layer of its own. With pre-norm layers, this reads what the last norm returns."""
    compare(Options("blockwise", min_block=4), blockwise(4))
    compare(Options("blockwise", min_block=3), blockwise(3, **PRE_NORM))


def check_rules() -> None:
    """Tokens among the best, with a gap, numbers at a distance; always some tokens of a draft."""
    model = blockwise(3)
    compare(Options("blockwise", top_beta=6, tau=1.0, min_block=2), model)
    with mock.patch.object(TASK.target_dictionary, "symbols", [*map(str, range(13)), "no number"]):
        compare(Options("blockwise", accept_distance=4.0), model)


def check_tokens() -> None:
    """A drafter with an encoder and a soft copy of the source, and one that shares the verifier's encoder."""
    model = make_transformer(TASK, 1, **SMALL)
    compare(accepting(3, Options("gad", **GAD)), model, tokens_drafter(src_embedding_copy=True))
    compare(accepting(3, Options("gad", **GAD)), model, tokens_drafter(share_encoder=True, verifier=model))


def check_fallback() -> None:
    """A trained drafter where nothing is copied, whose cache is filled in other iterations, too."""
    compare(accepting(3, Options("reuse", iad_fallback="gad", **GAD)), drafter=tokens_drafter(), max_len=9)


def check_widths() -> None:
    """With drafts of changing lengths, and none, the cache of a drafter that reads tokens is the same."""
    model, drafter, caches = make_transformer(TASK, 1, **SMALL), tokens_drafter(), []
    outputs, sizes = [], []
    how, sample = Options("gad", **GAD), make_sample(TASK, [4])
    allocate, iterate = TokenDrafter.allocate, GreedySearch.iterate
    for lengths in ([3], [3, 0, 0, 0, 0, 0, 2]):
        made: list[TokenDrafter] = []
        chosen = itertools.cycle(lengths)

        def keep(self: TokenDrafter, search: GreedySearch, made: list[TokenDrafter] = made) -> None:
            made.append(self)
            allocate(self, search)

        def change(self: GreedySearch, places: int, width: int, chosen: Any = chosen) -> None:
            iterate(self, places, next(chosen))

        with mock.patch.multiple(TokenDrafter, allocate=keep), mock.patch.multiple(GreedySearch, iterate=change):
            backend = GpuBackend(how.spec, how.options, how.context([model], drafter, TASK), active_sentences=1)
            output = backend.decode(sample, Constraints(pad=PAD, unk=UNK, eos=EOS, min_len=9, max_len=9), EOS)
        # Tokens of the last iterations may not be read any more.
        sizes.append(1 + sum(output.emitted[0][:-2]))
        outputs.append(output.outputs[0][0].tokens.tolist())
        caches.append(made[0].cache)
    assert outputs[0] == outputs[1] and min(sizes) > 4
    torch.testing.assert_close(*(cache[:, : min(sizes)] for cache in caches))


def check_no_numbers() -> None:
    """Drafts of a drafter whose scores are not numbers are tokens, which the verifier rejects."""
    model, how, sample = make_transformer(TASK, 1, **SMALL), Options("greedy"), make_sample(TASK, [3])
    limits = Constraints(pad=PAD, unk=UNK, eos=EOS, max_len=4)
    expected = NativeBackend(how.spec, how.options, how.context([model], None, TASK)).decode(sample, limits, EOS)
    how = Options("gad", fixed_width=True)
    for rank in (0, 3):
        sizes = {"drafter_context": "features", "transition_rank": rank, "transition_state": rank, **SMALL}
        drafter = make_drafter(TASK, 10, 3, verifier=model, **sizes)
        nn.init.constant_(drafter.decoder.layers[0].fc2.bias, torch.nan)
        backend = GpuBackend(how.spec, how.options, how.context([model], drafter, TASK), active_sentences=1)
        found = backend.decode(sample, limits, EOS)
        assert found.outputs[0][0].tokens.tolist() == expected.outputs[0][0].tokens.tolist()


def check_short_drafts() -> None:
    """Tiles whose rows are all beyond the drafts are not computed."""
    how, sample = Options("iad"), make_sample(TASK, [18])
    with mock.patch.object(gpu_drafter, "LENGTHS", (31,)):
        model = make_transformer(TASK, 1, **SMALL)
        backend = GpuBackend(how.spec, how.options, how.context([model], None, TASK), active_sentences=1)
    generator: Any = backend.generator
    generator.search.hidden.fill_(torch.nan)
    backend.decode(sample, Constraints(pad=PAD, unk=UNK, eos=EOS, min_len=3, max_len=3), EOS)
    rows = generator.search.hidden.view(-1, model.decoder.embed_dim)
    assert generator.used == [31] and not rows[:16].isnan().any() and rows[16:].isnan().all()


def check_prefixes() -> None:
    """What a prefix forces is drafted; where graphs are too short for it, over several iterations.

    Relaxed rules accept nothing else there, and afterwards drafts begin where they do on a CPU.
    """
    compare(Options("blockwise", min_block=4), blockwise(4), prefix=PREFIX)
    # A token forced after a free position, and as many tokens as iterations of full drafts emit.
    prefix = torch.tensor([[PAD, 9, 8, 5], [5, 6, 7, 8], [6, PAD, 7, 9]])
    compare(Options("blockwise", min_block=4), blockwise(4), prefix=prefix, max_len=12, counts=False)
    compare(Options("gs-jacobi", 2), prefix=PREFIX, counts=False)


def prepare() -> None:
    """Draft few rows, which are slow when interpreted, and watch the kernels' accesses of memory."""
    gpu_drafter.LENGTHS = (3, 7, 15)
    copying._BLOCK = 16
    Watch()
