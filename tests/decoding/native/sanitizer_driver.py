"""Program of test_sanitizers.py: valid and invalid calls of kernels built with sanitizers.

Usage: python -m tests.decoding.native.sanitizer_driver LIBRARY ROUNDS SEED

It first makes each call of `FAULTS`, past all checks, in a child process, and prints how it ended: the sanitizer must
report it and end the process. After the line `RANDOM` follow ROUNDS rounds of random calls.
"""

import importlib.util
import os
import random
import sys
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any
from unittest import mock

NAME = "fairseq_plugins.decoding.native._kernels"


def load(library: str) -> ModuleType:
    """Import the kernels of a library instead of the installed ones."""
    spec = importlib.util.spec_from_file_location(NAME, library)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    return module


# Before `kernels` is first called.
MODULE = load(sys.argv[1])

import numpy as np  # noqa: E402
import torch  # noqa: E402

from fairseq_plugins.decoding.kernel_module import Unsupported  # noqa: E402
from fairseq_plugins.decoding.native.model import NativeWeights  # noqa: E402
from tests.decoding.methods.test_blockwise import make_blockwise  # noqa: E402
from tests.decoding.native import test_continuous_batch as running  # noqa: E402
from tests.decoding.native import test_generator as batches  # noqa: E402
from tests.decoding.native import test_parts as models  # noqa: E402
from tests.decoding.native.random_models import make_random, random_sizes  # noqa: E402
from tests.decoding.native.weight_formats import FORMATS  # noqa: E402
from tests.support import (  # noqa: E402
    Options,
    assert_same_hypotheses,
    decode,
    fairseq_beam,
    make_drafter,
    make_sample,
    make_task,
    make_transformer,
)


def right_model(choose: random.Random) -> None:
    """Compare a random decoder on a random model with fairseq's own search."""
    task = make_task(choose.choice([10, 40, 67, 130]))
    sizes = random_sizes(choose)
    model = make_random(task, choose.randrange(1000), **sizes)
    sample = make_sample(task, [choose.randint(0, 12) for _ in range(choose.randint(1, 6))], choose.randrange(1000))
    search: dict[str, Any] = {"max_len_b": choose.choice([1, 6, 12]), "min_len": choose.choice([0, 1])}
    how = choose.choice([Options("greedy"), Options("iad"), Options("jacobi"), Options("gs-jacobi", 3)])
    weights = NativeWeights(choose.random() < 0.5, batch_invariant=choose.random() < 0.3)
    if choose.random() < 0.3:
        prefix = torch.randint(4, 10, (len(sample["id"]), 2))
        prefix[0, 1] = 1
        search["prefix_tokens"] = prefix
    ours, _ = decode([model], task, sample, how, engine=weights, **search)
    expected = fairseq_beam([model], task, sample, 1, **search)
    # In tiny widths states hardly differ, and rounding decides between tokens.
    if sizes["decoder_embed_dim"] >= 8:
        assert_same_hypotheses(ours, expected, tolerance=1e-3)
        beam = choose.choice([1, 2, 4])
        beams, _ = decode([model], task, sample, Options("fast-beam"), engine=weights, beam_size=beam, **search)
        assert_same_hypotheses(beams, fairseq_beam([model], task, sample, beam, **search), tolerance=1e-3)
    # Only that nothing is read or written elsewhere.
    decode([model], task, sample, Options("greedy", int8=True), **search)


def right_layer(choose: random.Random) -> None:
    """Compare linear layers of each weight format with PyTorch's, NaN included."""
    rows, inputs, outputs = choose.randint(0, 40), choose.randint(1, 70), choose.randint(1, 70)
    weight, bias = torch.randn(outputs, inputs).half().float(), torch.randn(outputs)
    for weight_format in FORMATS:
        if not MODULE.supports(weight_format) or weight_format == FORMATS.FP16_AMX_TILES:
            continue
        layer, x = (
            MODULE.linear(weight, bias, None, format=weight_format, batch_invariant=False),
            torch.randn(rows, inputs),
        )
        result = torch.from_numpy(layer(x)).view(rows, outputs)
        if weight_format != FORMATS.INT8:
            torch.testing.assert_close(result, x @ weight.t() + bias, atol=1e-3, rtol=1e-3)
        x[torch.rand_like(x) < choose.choice([0.1, 1])] = float(choose.choice(["nan", "inf", "-inf", "1e38"]))
        layer(x)


class Loops:
    """Decodes batches with drafts, and compares outputs with fairseq's own search."""

    def __init__(self) -> None:
        self.task = make_task(30)
        self.verifier = make_transformer(self.task, 3, decoder_layers=2)
        cell = {"transition_rank": 4, "transition_state": 5}
        kinds: list[dict[str, Any]] = [
            {"drafter_context": "features", **cell},
            {"drafter_context": "features", "src_embedding_copy": True},
            {"drafter_attention": "full", **cell},
            {"share_encoder": True, "src_embedding_copy": True},
        ]
        self.drafters = [
            make_drafter(self.task, 4, block_size=9, verifier=self.verifier, **options) for options in kinds
        ]
        self.blockwise = [make_blockwise(5, 30, identity_first_head=identity)[1] for identity in (True, False)]

    def run(self, choose: random.Random) -> None:
        """Decode a random batch with a random decoder."""
        lengths = [choose.randint(0, 20) for _ in range(choose.randint(1, 12))]
        sample = make_sample(self.task, lengths, choose.randint(0, 9))
        search = {"max_len_b": choose.choice([1, 9, 60])}
        drafter, models = choose.choice(self.drafters), [self.verifier]
        expected = fairseq_beam(models, self.task, sample, 1, **search)
        sample["drafts"] = random_drafts(choose, expected)
        fallback = {"iad_fallback": "gad"} if choose.random() < 0.5 else {}
        for how in (
            Options("gad", choose.choice([1, 9]), fixed_width=choose.random() < 0.5),
            Options("iad", iad_lookup=choose.choice(["unique", "recent"]), **fallback),
            Options("reuse", choose.choice([None, 1, 9]), fixed_width=choose.random() < 0.5, **fallback),
            Options("hybrid-jacobi", choose.choice([1, 9]), jacobi_pool=choose.random() < 0.5),
        ):
            assert_same_hypotheses(decode(models, self.task, sample, how, drafter, **search)[0], expected)
        # Outputs are not compared here (see test_native_backend.py), only memory accesses are checked.
        relaxed = Options(
            "gad++", choose.choice([1, 9]), top_beta=choose.choice([1, 30]), tau=choose.choice([0.1, 50.0])
        )
        decode(models, self.task, sample, relaxed, drafter, **search)
        heads = Options("blockwise", choose.choice([2, 4]), min_block=choose.choice([1, 2]))
        decode([choose.choice(self.blockwise)], self.task, sample, heads, **search)


def random_drafts(choose: random.Random, outputs: list) -> list[list[list[int]]]:
    """Return some drafts for each output: its tokens with some left out, doubled or replaced, or none."""
    drafts: list[list[list[int]]] = []
    for hypotheses in outputs:
        drafts.append([])
        for _ in range(choose.randint(0, 3)):
            copied = choose.choices([0, 1, 2], [1, 5, 1], k=len(hypotheses[0]["tokens"]))
            tokens = [
                token
                for token, count in zip(hypotheses[0]["tokens"].tolist(), copied, strict=True)
                for _ in range(count)
            ]
            drafts[-1].append([choose.randrange(30) if choose.random() < 0.1 else token for token in tokens])
    return drafts


def reads_features() -> batches.Call:
    """Return a call with a drafter that reads the verifier's states."""
    return batches.trained(drafter_context="features")


_makes = (batches.greedy, batches.beams, batches.trained, batches.heads, reads_features)


def wrong_drafts(choose: random.Random) -> str:
    """Drafts with ids outside the dictionary are refused."""
    call = _call(batches.copies)
    made = call.made()
    symbols = {name: call.batch[name] for name in batches.SYMBOLS}
    known = [5, 6, batches.EOS] * 20
    ids = known if choose.random() < 0.5 else [*known, _odd(choose)]
    drafts = [[choose.choices(ids, k=choose.randint(0, 40)) for _ in range(3)] for _ in range(choose.randint(0, 6))]
    try:
        made.begin([MODULE.Sentence([5, 6], min_len=1, max_len=12, drafts=given) for given in drafts], **symbols)
    except (ValueError, TypeError) as error:
        return f"drafts: {type(error).__name__}"
    made.run()
    return "drafts: done"


def continuous(choose: random.Random) -> str:
    """Sentences join and leave a running batch, which is closed at any time."""
    call = _call(choose.choice([*_makes, batches.copies]))
    made = running.opened(call, threads=choose.choice([1, 3]), max_sentences=choose.choice([1, 7]))
    sentences = running.sentences(call, choose.randint(1, 20), choose.randint(0, 9))
    for number, sentence in enumerate(sentences):
        running.admit(made, number, sentence, streams=choose.random() < 0.5)
        if choose.random() < 0.2:
            made.cancel(choose.randint(0, number))
            made.take(0.001)
    if choose.random() < 0.5:
        made.close()
    return "continuous"


def wrong_batch(choose: random.Random) -> str:
    """Decode a batch with one invalid value, which is refused or harmless; return the change and the outcome."""
    call = _call(choose.choice(_makes))
    before = dict(call.batch)
    name = choose.choice(["flaw", "encoded", "odd source", "odd number"])
    try:
        if name == "flaw":
            call.batch |= choose.choice(batches.BATCH_FLAWS)[0]
        elif name == "encoded":
            call.encoded(**choose.choice(batches.ENCODED_FLAWS)[0])
        elif name == "odd source":
            call.batch["source"] = batches.changed(call.batch["source"], _odd(choose))
        else:
            number = choose.choice(["pad", "unk", "eos", "first_token", "min_len"])
            call.batch[number] = _odd(choose)
        call.run()
    except (ValueError, TypeError, RuntimeError, Unsupported) as error:
        return f"batch, {name}: {type(error).__name__}"
    finally:
        call.batch = before
    return f"batch, {name}: done"


_calls: dict[str, batches.Call] = {}


def _call(make: Callable[[], batches.Call]) -> batches.Call:
    if make.__name__ not in _calls:
        _calls[make.__name__] = make()
    return _calls[make.__name__]


def wrong_parts(choose: random.Random) -> str:
    """Layers and paths of wrong sizes are refused."""
    kind = choose.choice(["layers", "path", "drafter"])
    try:
        if kind == "layers":
            parts = models.decoder_parts()
            choose.choice(models.LAYER_FLAWS)[0](parts)
            MODULE.transformer(**parts)
        elif kind == "path":
            models.make_path(**{**models.PATH, **choose.choice(models.PATH_FLAWS)[0]})
        else:
            # from a model with another source dictionary
            call = batches.Call(Options("greedy"), [make_transformer(make_task(30), 1, encoder_embed_dim=24)])
            call.parts["drafter"] = _call(reads_features).parts["drafter"]
            call.run()
    except ValueError:
        return f"{kind}: refused"
    raise AssertionError(f"{kind}: not refused")


def _odd(choose: random.Random) -> int:
    return choose.choice([-(2**63), -(2**40), -2, -1, 20, 10**6, 2**31, 2**40, 2**62, 2**63 - 1])


def _claimed(memory: np.ndarray, *shape: int) -> np.ndarray:
    """Return an array whose claimed shape exceeds its memory."""
    return np.lib.stride_tricks.as_strided(memory, shape, tuple(memory.itemsize * n for n in (*shape[1:], 1)))


def too_small_weight() -> None:
    """Read a weight that has a hundredth of its numbers."""
    MODULE.linear(_claimed(np.zeros(64, np.float32), 80, 80), None, None, format=FORMATS.PANELS, batch_invariant=False)


def too_small_source() -> None:
    """Read encoded sources that have a tenth of their numbers."""
    call = batches.greedy()
    call.batch["source"] = torch.full((20, 32), 5)
    call.encoded(encoded=_claimed(np.zeros(64 * 16, np.float32), 640, 16), embedding=None).run()


def unaligned_weight() -> None:
    """Read unaligned numbers: undefined behaviour within the array's memory."""
    memory = np.zeros(4 * 65, np.uint8)
    weight = memory[2:-2].view(np.float32).reshape(8, 8)
    MODULE.linear(weight, None, None, format=FORMATS.PANELS, batch_invariant=False)


RANDOM = "random calls"
FAULTS = {function.__name__: function for function in (too_small_weight, too_small_source, unaligned_weight)}


def _status_of(call: Callable[[], None]) -> int:
    """Make a call in a child process; return its exit status."""
    process = os.fork()
    if process == 0:
        call()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def main(rounds: int, seed: int) -> None:
    for name, fault in FAULTS.items():
        print(f"{name} {_status_of(fault)}", flush=True)
    for stream in (sys.stdout, sys.stderr):
        print(RANDOM, file=stream, flush=True)
    torch.manual_seed(seed)
    choose = random.Random(seed)
    seen: Counter[str] = Counter()
    loops = Loops()
    # The kernels take their number of threads from PyTorch, whose own threads idle with layers this small.
    torch.set_num_threads(1)
    threads = mock.patch.object(torch, "get_num_threads").start()
    while seen["rounds"] < rounds:
        threads.return_value = choose.randint(1, 3)
        MODULE.use_instruction_set(choose.choice(MODULE.runnable_instruction_sets()))
        right_model(choose)
        right_layer(choose)
        if seen["rounds"] % 4 == 0:
            loops.run(choose)
            seen["whole batches"] += 1
        for _ in range(4):
            seen[wrong_batch(choose)] += 1
            seen[wrong_parts(choose)] += 1
            seen[wrong_drafts(choose)] += 1
            seen[continuous(choose)] += 1
        seen["rounds"] += 1
    assert threads.called
    for name, count in sorted(seen.items()):
        print(f"{count:6} {name}")


if __name__ == "__main__":
    main(int(sys.argv[2]), int(sys.argv[3]))
