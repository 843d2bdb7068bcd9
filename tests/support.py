"""Random small models, batches, scripted drafters and a decoding helper for tests."""

import contextlib
import gc
import importlib
import io
import logging
import math
import os
import shlex
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.logging import progress_bar
from fairseq.models.transformer import TransformerModel, base_architecture
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor, nn

from fairseq_plugins.decoding import methods
from fairseq_plugins.decoding.backends import Backend, choose_backend
from fairseq_plugins.decoding.constraints import Constraints
from fairseq_plugins.decoding.generator import DraftVerifyGenerator
from fairseq_plugins.decoding.method import Method, MethodContext
from fairseq_plugins.decoding.native.model import NativeWeights
from fairseq_plugins.decoding.recording.stats import DecodingStats, SentenceStats
from fairseq_plugins.decoding.recording.trace_writer import TraceWriter
from fairseq_plugins.decoding.reference.backend import TorchBackend
from fairseq_plugins.decoding.reference.captured.graphed_verifiers import greedy_verifier
from fairseq_plugins.decoding.reference.drafters import Drafter
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.decoding.reference.sampling import Sampling
from fairseq_plugins.decoding.reference.search import GreedySearch
from fairseq_plugins.decoding.reference.search.rules import Rule, exact
from fairseq_plugins.decoding.reference.state import DecodingState, Draft
from fairseq_plugins.models.block_nat import BlockNat, block_nat_base
from fairseq_plugins.tasks.options import SpecDecConfig
from fairseq_plugins.tasks.spec_dec import SpecDecTask
from tests import quick_options

quick_options.install()


def make_dictionary(size: int) -> Dictionary:
    """Return a dictionary of `size` symbols, including fairseq's four special ones."""
    dictionary = Dictionary()
    for index in range(size - len(dictionary)):
        dictionary.add_symbol(f"w{index}")
    return dictionary


def make_task(size: int = 40, **options: Any) -> SpecDecTask:
    """Return a task over a dictionary of `size` symbols, without data."""
    dictionary = make_dictionary(size)
    config = SpecDecConfig(**{"glancing_updates": 10, **options})
    return SpecDecTask(config, dictionary, dictionary)


def both_sides(**options: Any) -> dict[str, Any]:
    """Return options of the encoder and of the decoder."""
    return {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in options.items()}


def make_args(**options: Any) -> Namespace:
    """Return options of a very small Transformer."""
    sizes = both_sides(embed_dim=16, ffn_embed_dim=24, layers=2, attention_heads=4)
    return Namespace(**{**sizes, "dropout": 0.0, "max_source_positions": 64, "max_target_positions": 64, **options})


SMALL = both_sides(layers=1, attention_heads=2, ffn_embed_dim=16)
"""Options of smaller models."""


def make_transformer(task: SpecDecTask, seed: int = 0, ending: bool = True, **options: Any) -> TransformerModel:
    """Return a random stock Transformer in eval mode with varied outputs; `ending` lets many of them end early."""
    torch.manual_seed(seed)
    args = make_args(**options)
    base_architecture(args)
    model = liven(TransformerModel.build_model(args, task))
    if ending:
        _let_outputs_end(model, task, (len(task.target_dictionary), seed, *sorted(options.items())))
    return model


def liven(model: nn.Module) -> Any:
    """Scale random weights so that states depend on token, position and source; else outputs repeat one token."""
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter.dim() == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
        elif ".q_proj" in name or ".k_proj" in name:
            parameter.data *= 3.0
        elif "self_attn" in name and "decoder" in name:
            parameter.data *= 0.5
        elif ".fc" in name:
            parameter.data *= 4.0
        elif "transition.after" in name or "transition.of_state" in name:
            torch.nn.init.normal_(parameter)
        elif "reader." in name:
            parameter.data += 0.02 * torch.randn_like(parameter)
    return model.eval()


_endings: dict[tuple, int] = {}
"""Arguments of a model -> the token exchanged with EOS, cached: finding it is slow."""


def _let_outputs_end(model: TransformerModel, task: SpecDecTask, arguments: tuple) -> None:
    """Exchange EOS with the token whose first position varies most."""
    if arguments not in _endings:
        steps = 30
        tokens = _endless_outputs(model, task, make_sample(task, list(range(0, 24, 2))), steps)
        candidates = tokens.unique()
        first = torch.where(tokens == candidates[:, None, None], torch.arange(steps), steps).amin(2)
        _endings[arguments] = int(candidates[first.float().std(1).argmax()])
    pair = torch.tensor([_endings[arguments], task.target_dictionary.eos()])
    weight = model.decoder.output_projection.weight.data
    weight[pair] = weight[pair.flip(0)]


def _endless_outputs(model: TransformerModel, task: SpecDecTask, sample: dict[str, Any], steps: int) -> Tensor:
    """Return greedy outputs without EOS, [B, steps]; they only decide which token is exchanged with EOS."""
    output, _ = decode([model], task, sample, Options("greedy"), max_len_b=steps, min_len=steps)
    return torch.tensor(ids(output))[:, :steps]


def make_drafter(
    task: SpecDecTask, seed: int = 0, block_size: int = 25, verifier: nn.Module | None = None, **options: Any
) -> BlockNat:
    """Return a random drafter in eval mode."""
    torch.manual_seed(seed)
    args = make_args(block_size=block_size, **options)
    block_nat_base(args)
    return liven(BlockNat.build_model(args, task, verifier=verifier))


def make_sample(task: SpecDecTask, lengths: list[int], seed: int = 0) -> dict[str, Any]:
    """Return a left-padded batch of random sources with these numbers of tokens before EOS."""
    generator = torch.Generator().manual_seed(seed)
    dictionary = task.source_dictionary
    width = max(lengths) + 1
    source = torch.full((len(lengths), width), dictionary.pad())
    for row, length in enumerate(lengths):
        words = torch.randint(dictionary.nspecial, len(dictionary), (length,), generator=generator)
        source[row, width - length - 1 :] = torch.cat([words, torch.tensor([dictionary.eos()])])
    return {
        "id": torch.arange(len(lengths)),
        "nsentences": len(lengths),
        "ntokens": sum(lengths),
        "net_input": {"src_tokens": source, "src_lengths": torch.tensor(lengths) + 1},
    }


def make_all(
    size: int, seed: int, lengths: list[int], sample_seed: int = 0, **options: Any
) -> tuple[SpecDecTask, TransformerModel, dict[str, Any]]:
    """Return a task, a model for it with these options, and a batch."""
    task = make_task(size)
    return task, make_transformer(task, seed, **options), make_sample(task, lengths, sample_seed)


def fairseq_greedy(models: list[nn.Module], task: SpecDecTask, sample: dict[str, Any], **options: Any) -> list:
    """Decode with fairseq's own generator at beam 1; options of its constructor, prefix_tokens and bos_token."""
    return fairseq_beam(models, task, sample, 1, **options)


ROUNDING = 1e-5
"""Difference of the scores of two candidates, sums of log-probabilities, that the order of additions may decide."""


class FairseqHypotheses(list):
    """Hypotheses of every sentence, and how narrowly fairseq chose them.

    Attributes:
        margins: of each sentence, the least difference between neighbours among the candidates of a step: with another
            rounding of less than this the search goes the same way.
    """

    margins: list[float]


def fairseq_beam(
    models: list[nn.Module], task: SpecDecTask, sample: dict[str, Any], beam: int, **options: Any
) -> FairseqHypotheses:
    """Decode with fairseq's own generator at any beam."""
    per_batch = _per_batch(options)
    generator = SequenceGenerator(models, task.target_dictionary, beam_size=beam, **options)
    step, size = generator.search.step, len(sample["net_input"]["src_tokens"])
    # fairseq's search names the sentences by their ids.
    margins = dict.fromkeys(sample["id"].tolist() if "id" in sample else range(size), math.inf)

    def recorded_step(number: int, lprobs: Tensor, scores: Tensor | None, *more: Any) -> Any:
        # At first all rows of a sentence are equal.
        totals = lprobs[:, :1] if number == 0 else lprobs + scores[:, :, number - 1 : number]
        best = totals.flatten(1).topk(min(2 * beam + 1, totals[0].numel())).values
        gaps = (best[:, :-1] - best[:, 1:]).nan_to_num(math.inf)  # of two forbidden candidates
        sentences = more[1].tolist() if len(more) > 1 else list(margins)[: len(gaps)]
        for sentence, gap in zip(sentences, gaps.amin(1).tolist(), strict=True):
            margins[sentence] = min(margins[sentence], gap)
        return step(number, lprobs, scores, *more)

    generator.search.step = recorded_step
    hypotheses = FairseqHypotheses(generator.generate(models, sample, **per_batch))
    hypotheses.margins = list(margins.values())
    return hypotheses


def make_state(tokens: Tensor, lengths: list[int], max_len: int, **constraints: Any) -> DecodingState:
    """Return the state of a batch with these tokens [B, any], which start with the first symbol."""
    return DecodingState(
        tokens=tokens,
        lengths=torch.tensor(lengths),
        host_lengths=lengths,
        constraints=Constraints(pad=1, unk=3, eos=2, max_len=max_len, **constraints),
        log_probs=torch.zeros(tokens.shape),
        sentences=list(range(len(lengths))),
    )


class RecordedStats(DecodingStats):
    """Statistics that keep those of every sentence."""

    def __init__(self) -> None:
        super().__init__("test")
        self.recorded: list[SentenceStats] = []

    def record(self, batch: Sequence[SentenceStats], seconds: float) -> None:
        super().record(batch, seconds)
        self.recorded.extend(batch)


class Options:
    """A decoding method by its name, with options as the command line gives them.

    Args:
        decoder: value of `--decoder`.
        block_size: of `--block-size`.
        int8: of `--int8`.
        options: those of the method.
    """

    def __init__(self, decoder: str, block_size: int | None = None, int8: bool = False, **options: Any) -> None:
        self.given = f"{decoder} {block_size} {int8} {options}"
        self.spec = methods.find(decoder)
        if "fixed_width" in {field.name for field in fields(self.spec.options)}:
            # Drafts must not depend on running times (tests/decoding/native/test_policy.py).
            options = {"fixed_width": True, **options}
        if block_size is not None:
            options["block_size"] = block_size
        self.options = self.spec.options(**options).resolved
        self.int8 = int8

    def __repr__(self) -> str:
        return f"Options({self.given})"

    def context(
        self,
        models: list[nn.Module],
        drafter: BlockNat | None,
        task: SpecDecTask,
        engine: Engine | NativeWeights | None = None,
        temperature: float = 1.0,
        beam: int = 1,
    ) -> MethodContext:
        """Return the context of the method: for the compiled kernels, unless an engine for PyTorch is given."""
        weights = None if isinstance(engine, Engine) else engine
        if engine is None:
            weights = NativeWeights(int8=self.int8)
        if weights is not None:
            engine = Engine(weights.int8, batch_invariant=weights.batch_invariant)
        return MethodContext(
            models, drafter, task.source_dictionary, task.target_dictionary, engine, weights, temperature, beam
        )

    def build(self, *arguments: Any, **more: Any) -> Method:
        """Build the method for PyTorch; arguments as for `context`."""
        assert self.spec.build is not None
        return self.spec.build(self.context(*arguments, **more), self.options)


def decode(
    models: list[nn.Module],
    task: SpecDecTask,
    sample: dict[str, Any],
    method: Options | Drafter | Method,
    *how: Any,
    **options: Any,
) -> tuple[list, list[SentenceStats]]:
    """Decode one batch with our generator; return hypotheses and statistics. Arguments as for `make_generator`."""
    per_batch = _per_batch(options)
    generator, stats = make_generator(models, task, method, *how, **options)
    return generator.generate(models, sample, **per_batch), stats.recorded


def make_generator(
    models: list[nn.Module],
    task: SpecDecTask,
    method: Options | Drafter | Method,
    model: BlockNat | None = None,
    rule: Rule = exact,
    engine: Engine | NativeWeights | None = None,
    trace: TraceWriter | None = None,
    sampling: Sampling | None = None,
    **options: Any,
) -> tuple[DraftVerifyGenerator, "RecordedStats"]:
    """Return one of our generators, and its statistics.

    Args:
        models: the verifiers.
        task: for the dictionary.
        method: options of a method, a built method, or a drafter to use with `rule`.
        model: the trained drafter for methods that have one.
        rule: acceptance rule for a given drafter.
        engine: engine of the loop in PyTorch, or weight format of the compiled kernels (default: the fastest backend).
        trace: records every iteration.
        sampling: draws one output for each sentence, or as many as `samples`.
        options: as for fairseq's generator.
    """
    temperature = options.get("temperature", 1.0)
    beam = min(options.get("beam_size", 1), len(task.target_dictionary) - 1)

    def choose() -> Backend:
        active = options.get("active_sentences", 0)
        if isinstance(method, Options):
            context = method.context(models, model, task, engine, temperature, beam)
            size = options.get("no_repeat_ngram_size", 0)
            context = replace(context, sampling=sampling, no_repeat_ngram_size=size)
            return choose_backend(method.spec, method.options, context, trace, active)
        if isinstance(method, Method):
            return TorchBackend(method, trace=trace, active_sentences=active)
        operations = engine if isinstance(engine, Engine) else Engine()
        search = GreedySearch(rule)
        verifier = greedy_verifier(search, models, operations, temperature)
        return TorchBackend(Method(verifier, method, search), trace=trace, active_sentences=active)

    if sampling is not None:
        options = {"samples": 1, **options}
    stats = RecordedStats()
    spec = method.spec if isinstance(method, Options) else methods.find("gad")
    generator = DraftVerifyGenerator(
        models, task.target_dictionary, spec, choose, stats, trace=trace, drafter=model, **options
    )
    return generator, stats


def _per_batch(options: dict[str, Any]) -> dict[str, Any]:
    return {name: options.pop(name) for name in ("prefix_tokens", "bos_token") if name in options}


# (sentence, tokens it has so far, width) -> drafted tokens, at most `width`
Script = Callable[[int, int, int], list[int]]


class ScriptedDrafter(Drafter):
    """Drafts the tokens of a script, whose number may differ between sentences."""

    def __init__(self, script: Script, width: int) -> None:
        self.script = script
        self.width = width
        self.sentences: list[int] = []

    def start(self, sample: dict[str, Any], encoder_out: Any) -> None:
        self.sentences = list(range(sample["net_input"]["src_tokens"].size(0)))

    def draft(self, state: DecodingState) -> Draft:
        width = max(0, min(self.width, state.max_len - state.span.shortest))
        drafts = [
            self.script(sentence, length, width)
            for sentence, length in zip(self.sentences, state.host_lengths, strict=True)
        ]
        tokens = torch.zeros(len(drafts), width, dtype=torch.long)
        for row, draft in enumerate(drafts):
            tokens[row, : len(draft)] = torch.tensor(draft, dtype=torch.long)
        return Draft(tokens, torch.tensor([len(draft) for draft in drafts]))

    def select_rows(self, rows: Tensor) -> None:
        self.sentences = [self.sentences[row] for row in rows.tolist()]


def always_right(outputs: list[list[int]]) -> Script:
    """Return a script that drafts the known outputs."""
    return lambda sentence, done, width: outputs[sentence][done : done + width]


def always_wrong(outputs: list[list[int]]) -> Script:
    """Return a script that drafts wrong ordinary words."""

    def script(sentence: int, done: int, width: int) -> list[int]:
        right = [*outputs[sentence][done : done + width], *[0] * width][:width]
        return [5 if token == 4 else 4 for token in right]

    return script


def right_then_wrong(outputs: list[list[int]], right: int) -> Script:
    """Return a script that drafts `right` tokens of the known outputs and then wrong ones."""
    wrong = always_wrong(outputs)

    def script(sentence: int, done: int, width: int) -> list[int]:
        known = outputs[sentence][done : done + min(right, width)]
        return known + wrong(sentence, done, width)[len(known) :]

    return script


def ids(hypotheses: list) -> list[list[int]]:
    """Return token ids of the best hypotheses."""
    return [hypothesis[0]["tokens"].tolist() for hypothesis in hypotheses]


def _in_the_order_of(own: list, other: list) -> list:
    """Return hypotheses in the order of the others, where scores of neighbours differ by rounding only."""
    own = list(own)
    for place, its in enumerate(other[: len(own) - 1]):
        mine, following = own[place : place + 2]
        swapped = following["tokens"].tolist() == its["tokens"].tolist()
        if swapped and mine["tokens"].tolist() != its["tokens"].tolist():
            if abs(float(mine["score"] - following["score"])) <= 2e-6:
                own[place : place + 2] = [following, mine]
    return own


def all_ids(hypotheses: list) -> list[list[list[int]]]:
    """Return token ids of all hypotheses of every sentence."""
    return [[hypothesis["tokens"].tolist() for hypothesis in of_sentence] for of_sentence in hypotheses]


def scores(hypotheses: list) -> list[Tensor]:
    """Return positional scores of the best hypotheses."""
    return [hypothesis[0]["positional_scores"] for hypothesis in hypotheses]


def emitted_per_iteration(stats: Sequence[SentenceStats]) -> float:
    """Return tokens per iteration; 1 without useful drafts."""
    return sum(sentence.tokens for sentence in stats) / sum(sentence.iterations for sentence in stats)


def assert_same_output(ours: list, theirs: list, tolerance: float = 1e-4) -> None:
    """Compare tokens, positional scores and score within `tolerance`; one hypothesis per sentence."""
    assert all(len(own) == len(other) == 1 for own, other in zip(ours, theirs, strict=True))
    assert_same_hypotheses(ours, theirs, tolerance)


def assert_same_hypotheses(ours: list, theirs: list, tolerance: float = 1e-4) -> None:
    """Compare all hypotheses of every sentence in order; neighbours may swap if their scores differ by rounding.

    A sentence with other tokens is left out if a rounding may have decided fairseq's search (`FairseqHypotheses`).
    """
    margins = getattr(theirs, "margins", [math.inf] * len(theirs))
    for own, other, margin in zip(ours, theirs, margins, strict=True):
        own = _in_the_order_of(own, other)
        if all_ids([own]) != all_ids([other]) and margin < ROUNDING:
            continue
        assert all_ids([own]) == all_ids([other])
        for mine, its in zip(own, other, strict=True):
            assert mine.keys() == its.keys()
            torch.testing.assert_close(mine["positional_scores"], its["positional_scores"], rtol=0, atol=tolerance)
            torch.testing.assert_close(mine["score"].float(), its["score"].float(), rtol=1e-5, atol=tolerance)


REPOSITORY = Path(__file__).parents[1]


def _command_line(command: str, arguments: str, more: Sequence[str], plugin: bool) -> list[str]:
    user_dir = ["--user-dir", str(REPOSITORY / "fairseq_plugins")] if plugin and command != "preprocess" else []
    return [f"fairseq-{command}", *shlex.split(arguments), *more, *user_dir]


def start_command(command: str, arguments: str, *more: str, programs: Path | None = None) -> subprocess.Popen:
    """Start `fairseq-<command>` with the plugin in a new process, with output on pipes.

    Args:
        command: such as generate.
        arguments: on one line.
        more: further arguments.
        programs: folder of fast commands without their imports (see `command_server`).
    """
    name, *rest = _command_line(command, arguments, more, plugin=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": "", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        [str((programs or Path(sys.executable).parent) / name), *rest],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        # Background jobs of a shell ignore SIGINT, and so would their children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def finish_command(process: subprocess.Popen) -> subprocess.CompletedProcess:
    """Wait for a started command."""
    stdout, stderr = process.communicate(timeout=200)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def run_in_process(
    command: str, arguments: str, *more: str, input: str = "", plugin: bool = True
) -> subprocess.CompletedProcess:
    """Run `fairseq-<command>` in this process, without the slow imports; errors are raised."""
    argv = _command_line(command, arguments, more, plugin)
    if command in ("generate", "validate"):
        # Without a data worker, whose start and end take seconds.
        argv[1:1] = ["--num-workers", "0"]
    # Excludes existing objects from the garbage collection below.
    gc.freeze()
    out, err = io.StringIO(), io.StringIO()
    handler = logging.StreamHandler(err)
    root = logging.getLogger()
    with (
        mock.patch.object(sys, "argv", argv),
        mock.patch.object(sys, "stdin", io.StringIO(input)),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        root.addHandler(handler)
        # Commands of other tests set the level of the whole process.
        level = root.level
        root.setLevel(logging.INFO)
        # fairseq-train keeps the best score of a process here.
        vars(checkpoint_utils.save_checkpoint).pop("best", None)
        # And here TensorBoard's writers, which the next training would reuse.
        (progress_bar._tensorboard_writers or {}).clear()
        try:
            importlib.import_module(f"fairseq_cli.{command}").cli_main()
            # The generator prints its summary when it is collected.
            gc.collect()
        finally:
            root.removeHandler(handler)
            root.setLevel(level)
    return subprocess.CompletedProcess(argv, 0, out.getvalue(), err.getvalue())
