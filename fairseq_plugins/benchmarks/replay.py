"""Measure the speed of model shapes without trained drafters: random weights and replayed drafts.

The drafter runs at its full cost, but its tokens are replaced by the verifier's own greedy output with errors at random
positions. Every drafted token is right with the same probability, so that accepted lengths follow a geometric
distribution truncated at the block size. The probability is chosen for a given mean, and the policy takes it as the
drafter's probability of each token.
"""

import random
import shutil
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from fairseq import models, options, tasks
from fairseq.tasks.translation import TranslationTask
from fairseq_cli import preprocess
from torch import Tensor, nn

from fairseq_plugins.decoding.generator import DraftVerifyGenerator
from fairseq_plugins.decoding.method import KernelMethod, Method, MethodContext
from fairseq_plugins.decoding.reference.drafters import Drafter
from fairseq_plugins.decoding.reference.encoder import EncoderOut
from fairseq_plugins.decoding.reference.state import Advance, DecodingState, Draft
from fairseq_plugins.decoding.trained_drafter import TrainedDrafterOptions, drafted_tokens
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.files import new_folder

_TINY = (
    "--encoder-layers 4 --encoder-embed-dim 128 --encoder-ffn-embed-dim 256 --encoder-attention-heads 4 "
    "--decoder-layers 4 --decoder-embed-dim 128 --decoder-ffn-embed-dim 256 --decoder-attention-heads 4"
)
_NLLB = (
    "--encoder-layers 12 --encoder-embed-dim 1024 --encoder-ffn-embed-dim 4096 --encoder-attention-heads 16 "
    "--decoder-layers 12 --decoder-embed-dim 1024 --decoder-ffn-embed-dim 4096 --decoder-attention-heads 16"
)
# Shapes of the papers: Transformer-base, big (GAD section 5.1, 5.3.2) and 12-2 (SpecDec Appendix B.5); of NLLB-600M.
SHAPES = {
    "base": ("transformer", "block_nat_base", []),
    "big": ("transformer_vaswani_wmt_en_de_big", "block_nat_big", []),
    "12-2": ("transformer", "block_nat_12_2", ["--encoder-layers", "12", "--decoder-layers", "2"]),
    "nllb": ("transformer", "block_nat_big", _NLLB.split()),
    "tiny": ("transformer", "block_nat_tiny", _TINY.split()),
}
BLOCK_SIZE = 25
VOCABULARY = 32768
# Special symbols, a right and a wrong word, and some more.
MIN_VOCABULARY = 10
_SEED = 1
# Arguments of these models before `prepare` has written them. Random models rarely emit EOS: fairseq ends outputs at
# the length of their sources.
ARGUMENTS = ("data", "--path", "verifier.pt", "--max-len-a", "1", "--max-len-b", "0")


class Replay:
    """The verifier's own outputs (sentence id -> token ids) with errors at random positions.

    `words` are two ordinary symbols; one of them replaces a right token.
    """

    def __init__(self, outputs: Mapping[int, Sequence[int]], words: tuple[int, int]) -> None:
        self.row_of = {number: row for row, number in enumerate(outputs)}
        self.outputs = nn.utils.rnn.pad_sequence(
            [torch.tensor(tokens) for tokens in outputs.values()], batch_first=True, padding_value=words[0]
        )
        self.words = words
        self._on: dict[torch.device, tuple[Tensor, Tensor]] = {}
        self.draw(1.0)

    def draw(self, probability: float, width: int = 1) -> None:
        """Draw the errors, for a probability of right tokens and drafts of at most `width` tokens.

        They do not depend on the batches.
        """
        self.probability, self.width = probability, width
        generator = torch.Generator().manual_seed(_SEED)
        # By position, so that longer outputs do not change earlier draws.
        right = torch.rand(self.outputs.t().shape, generator=generator).t() < probability
        wrong = torch.where(self.outputs == self.words[0], self.words[1], self.words[0])
        self.tokens = torch.where(right, self.outputs, wrong)
        self._on = {device: self._moved(device) for device in self._on}

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the tokens [N, T + width] and the row of every sentence id, on a device; copied once per draw."""
        if device not in self._on:
            self._on[device] = self._moved(device)
        return self._on[device]

    def _moved(self, device: torch.device) -> tuple[Tensor, Tensor]:
        rows = torch.zeros(max(self.row_of) + 1, dtype=torch.long)
        rows[list(self.row_of)] = torch.tensor(list(self.row_of.values()))
        after = self.tokens[:, -1:].expand(-1, self.width)
        return torch.cat([self.tokens, after], dim=1).to(device), rows.to(device)

    def of(self, sample: Mapping[str, Any]) -> Tensor:
        """Return the drafted tokens [B, T] for the sentences of a fairseq batch."""
        return self.tokens[[self.row_of[number] for number in sample["id"].tolist()]]

    @torch.inference_mode()
    def learn(self, sample: Mapping[str, Any], hypotheses: Sequence[Sequence[dict[str, Tensor]]]) -> None:
        """Use the verifier's outputs of a batch for the next drafts; not to be timed.

        Tokens of equal score may be chosen differently in another batch, which changes the rest of the sentence.
        """
        longest = max(len(of_sentence[0]["tokens"]) for of_sentence in hypotheses)
        missing = max(0, longest - self.outputs.size(1))
        self.outputs = nn.functional.pad(self.outputs, (0, missing), value=self.words[0])
        for number, of_sentence in zip(sample["id"].tolist(), hypotheses, strict=True):
            tokens = of_sentence[0]["tokens"]
            self.outputs[self.row_of[number], : len(tokens)] = tokens
        self.draw(self.probability, self.width)


class ReplayedDrafter(Drafter):
    """Runs a drafter and replaces its tokens by those of a `Replay`; for the loop in PyTorch.

    On a GPU this adds two launches to an iteration, and no copy from the host.
    """

    def __init__(self, inner: Drafter, replay: Replay) -> None:
        self.inner, self.replay = inner, replay
        self.rows = torch.empty(0, dtype=torch.long)

    def start(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        self.inner.start(sample, encoder_out)
        self.rows = self._rows(sample)

    def append_rows(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        self.inner.append_rows(sample, encoder_out)
        self.rows = torch.cat([self.rows, self._rows(sample)])

    def _rows(self, sample: dict[str, Any]) -> Tensor:
        return self.replay.on(sample["id"].device)[1][sample["id"]]

    def draft(self, state: DecodingState) -> Draft:
        draft = self.inner.draft(state)
        tokens, width = self.replay.on(self.rows.device)[0], draft.tokens.size(1)
        if width == 0:
            return draft
        begins = tokens.unfold(1, width, 1)
        return replace(draft, tokens=begins[self.rows, state.lengths.clamp(max=begins.size(1) - 1)])

    def observe(self, advance: Advance) -> None:
        self.inner.observe(advance)

    def select_rows(self, rows: Tensor) -> None:
        self.inner.select_rows(rows)
        self.rows = self.rows.index_select(0, rows)


def acceptance_probability(tokens: float, block_size: int) -> float:
    """Return p with 1 + p + p^2 + ... + p^k = `tokens`, the mean tokens per iteration, by bisection.

    Raises ConfigurationError for a mean above k + 1.
    """
    if not 1 <= tokens < block_size + 1:
        problem = f"too short to replay {tokens} tokens per iteration"
        raise ConfigurationError("--block-size", block_size, problem, "give more")
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        mean = sum(middle**power for power in range(block_size + 1))
        low, high = (middle, high) if mean < tokens else (low, middle)
    return low


def replay_drafts(
    generator: DraftVerifyGenerator, outputs: Mapping[int, Sequence[int]], tokens: float, words: tuple[int, int]
) -> Replay:
    """Make a generator of `gad` or `gad++` decode with replayed drafts; return them, so that they can `learn`.

    Args:
        outputs: sentence id -> token ids of the verifier's greedy output.
        tokens: mean tokens per iteration to draw.
        words: two ordinary symbols.
    """
    spec = generator.spec
    replay = Replay(outputs, words)

    def draw(context: MethodContext, options: TrainedDrafterOptions) -> None:
        assert context.drafter is not None
        width = drafted_tokens(context.drafter, options.block_size)
        replay.draw(acceptance_probability(tokens, width), width)

    def build(context: MethodContext, options: TrainedDrafterOptions) -> Method:
        assert spec.build is not None
        draw(context, options)
        method = spec.build(context, options)
        return replace(method, drafter=ReplayedDrafter(method.drafter, replay))

    def build_kernels(context: MethodContext, options: TrainedDrafterOptions) -> KernelMethod:
        assert spec.build_kernels is not None
        draw(context, options)
        method = spec.build_kernels(context, options)
        drafter = method.weights.module.ReplayedDrafter(method.drafter, replay.probability)
        return replace(method, drafter=drafter, on_batch=lambda sample: drafter.replay(replay.of(sample)))

    generator.spec = replace(spec, build=build, build_kernels=build_kernels)
    return replay


# ------------------------------------------------------------------------------------------------ the models


def prepare(
    folder: Path, shape: str, drafter: str, weights: str, sentences: int, lengths: Sequence[int], vocabulary: int
) -> tuple[str, str, str]:
    """Write random models and a random test set, unless they exist; return the paths of data, verifier and drafter.

    Args:
        shape: key of `SHAPES`.
        drafter: value of --drafter-context, "tokens" or "features".
        weights: "fp16", as training with --fp16 saves them, or "fp32".
        lengths: shortest and longest source in tokens, drawn uniformly; outputs get as long as sources.
        vocabulary: size of the shared dictionary.
    """
    target = folder / f"{shape}-{drafter}-{weights}-{sentences}x{lengths[0]}-{lengths[1]}-v{vocabulary}"
    if not target.exists():
        with new_folder(target) as partial:
            _write_data(partial, sentences, lengths, vocabulary)
            _write_models(partial, shape, drafter, weights == "fp16")
    return str(target / "data"), str(target / "verifier.pt"), str(target / "drafter.pt")


def describe(shape: str, drafter: str, lengths: Sequence[int], vocabulary: int, block_size: int, drawn: str) -> str:
    """Return the note below tables of replayed drafts; `drawn` names rows and their means, if any."""
    kind = "of this shape" if drafter == "tokens" else "of 2 layers that reads the verifier's states"
    models = (
        f"Random weights: Transformer-{shape}, vocabulary {vocabulary}, sentences of {lengths[0]} to {lengths[1]} "
        "tokens, drawn uniformly, outputs as long."
    )
    if not drawn:
        return models
    return (
        f"REPLAYED. {models} A random drafter {kind}, with the verifier's encoder and k = {block_size}, runs at every "
        "draft, but its tokens are replaced by the verifier's own, wrong at drawn positions. Accepted lengths are "
        f"geometric, truncated at k; mean tokens per iteration, fewer at the ends of sentences: {drawn} (GAD Tables 2 "
        "and 3)."
    )


def _write_data(folder: Path, sentences: int, lengths: Sequence[int], vocabulary: int) -> None:
    words = [f"w{number}" for number in range(vocabulary - 4)]
    (folder / "dict").write_text("".join(f"{word} 1\n" for word in words), encoding="utf-8")
    draw = random.Random(_SEED)
    # Binarisation adds EOS.
    lines = [" ".join(draw.choices(words, k=draw.randint(*lengths) - 1)) for _ in range(sentences)]
    binarise(folder, lines, folder / "dict", folder / "dict")


def binarise(folder: Path, lines: Sequence[str], source: Path, target: Path) -> None:
    """Write sources to `folder`/data as the subset test; `source` and `target` are dictionaries."""
    (folder / "test.src").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    arguments = ["--source-lang", "src", "--target-lang", "tgt", "--only-source", "--workers", "1"]
    arguments += ["--srcdict", str(source), "--testpref", str(folder / "test"), "--destdir", str(folder / "data")]
    preprocess.main(options.get_preprocessing_parser().parse_args(arguments))
    # Not written with --only-source.
    shutil.copy(target, folder / "data" / "dict.tgt.txt")


def _write_models(folder: Path, shape: str, drafter_context: str, half: bool) -> None:
    verifier_arch, drafter_arch, sizes = SHAPES[shape]
    torch.manual_seed(_SEED)
    common = [str(folder / "data"), "--source-lang", "src", "--target-lang", "tgt", "--share-all-embeddings", *sizes]
    args = _parse([*common, "--task", "translation", "--arch", verifier_arch])
    task = TranslationTask.setup_task(args)
    verifier = models.ARCH_MODEL_REGISTRY[verifier_arch].build_model(args, task)
    # With tied embeddings a random model repeats its input, which at first is EOS.
    verifier.decoder.embed_tokens.weight.data[task.target_dictionary.eos()] = 0
    _save(folder / "verifier.pt", args, verifier, half)
    args = _parse(
        [*common, "--user-dir", str(Path(__file__).parents[1]), "--task", "spec_dec", "--arch", drafter_arch]
        + ["--criterion", "glat_loss", "--share-encoder", "--block-size", str(BLOCK_SIZE)]
        + ["--drafter-context", drafter_context]
        + (["--decoder-layers", "2"] if drafter_context == "features" else [])
    )
    task = tasks.setup_task(args)
    drafter = models.ARCH_MODEL_REGISTRY[drafter_arch].build_model(args, task, verifier=verifier)
    _save(folder / "drafter.pt", args, drafter, half)


def _parse(arguments: list[str]) -> Namespace:
    return options.parse_args_and_arch(options.get_training_parser(), input_args=arguments)


def _save(path: Path, args: Namespace, model: nn.Module, half: bool) -> None:
    """Write a minimal checkpoint for fairseq's loader, in half precision as training with --fp16 saves it, or not."""
    rounded = {name for name, _ in model.named_parameters(remove_duplicate=False)} if half else set()
    weights = {name: weight.half() if name in rounded else weight for name, weight in model.state_dict().items()}
    history = {"criterion_name": "none", "optimizer_name": "none", "lr_scheduler_state": {}, "num_updates": 0}
    state = {"args": args, "model": weights, "optimizer_history": [history], "extra_state": {"epoch": 1}}
    torch.save(state, path)
