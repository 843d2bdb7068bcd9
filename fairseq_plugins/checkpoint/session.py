"""Load task, models and data of a command as fairseq-generate does before it decodes."""

import ast
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from fairseq import checkpoint_utils, tasks, utils
from fairseq.data.encoders.sentencepiece_bpe import SentencepieceBPE, SentencepieceConfig
from fairseq.models import FairseqEncoderDecoderModel
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from fairseq_plugins.checkpoint.compact_weights import compact_weights, restore
from fairseq_plugins.checkpoint.loading import building, read_language_model, read_state
from fairseq_plugins.checkpoint.mapped_weights import TakeWeights
from fairseq_plugins.checkpoint.tool_errors import check_dictionaries, check_sentencepiece
from fairseq_plugins.errors import ConfigurationError, flag, is_out_of_memory, one_line
from fairseq_plugins.process.output import ignore_hydras_warnings, is_tool, say
from fairseq_plugins.shared.binarised import check_binarised
from fairseq_plugins.shared.fingerprints import keep_fingerprint


class TaskSession:
    """The task, data and models of a command, on the device (index of a GPU) and in the precision of its options.

    Models are loaded on first use.
    """

    # A model of sentencepiece for target text, None if --bpe cuts it, too.
    target_subwords: str | None = None

    def __init__(self, cfg: DictConfig, device: int | None = None) -> None:
        """Set up the task; raises ConfigurationError if it cannot be, or for options that only fairseq's tools take."""
        for option, tool in (("score_reference", "fairseq-generate"), ("constraints", "fairseq-interactive")):
            if cfg.generation[option]:
                raise ConfigurationError(flag(option), None, "is not for this command", f"use it with {tool}")
        self.cfg = cfg
        self.cuda = torch.cuda.is_available() and not cfg.common.cpu
        self.device = torch.device("cpu")
        if self.cuda:
            # Other threads, and programs that load more models, have another current GPU, which stays as it is.
            self.device = torch.device("cuda", torch.cuda.current_device() if device is None else device)
            if is_tool():
                torch.cuda.set_device(self.device)
        try:
            self.task = tasks.setup_task(cfg.task)
        except ConfigurationError:
            raise
        except Exception as error:
            check_dictionaries(cfg.task.data)
            if is_out_of_memory(error):
                raise
            reason = one_line(error, 300)
            if not reason or not isinstance(error, ValueError):  # with which fairseq's tasks refuse their options
                reason = f"{type(error).__name__}: {reason}"
            problem, remedy = f"cannot be set up ({reason})", "give a task that translates, with its options"
            raise ConfigurationError("--task", cfg.task._name, problem, remedy) from error
        self.task.reports_summary = False  # the command prints its own
        self.task.weights_are_fixed = True
        # Reading a configuration takes long compared with decoding one sentence.
        self._prefix_size, self._post_process = cfg.generation.prefix_size, cfg.common_eval.post_process

    @cached_property
    def models(self) -> list[FairseqEncoderDecoderModel]:
        """The models of --path; several are an ensemble."""
        return [self.prepared(self._load(path)) for path in utils.split_paths(self.cfg.common_eval.path)]

    def _load(self, path: str) -> FairseqEncoderDecoderModel:
        overrides = ast.literal_eval(self.cfg.common_eval.model_overrides)
        with warnings.catch_warnings(), TakeWeights(), compact_weights():
            ignore_hydras_warnings()
            state, _ = read_state(path, "--path", overrides)
            with building("--path", path):
                (model,), _ = checkpoint_utils.load_model_ensemble([path], overrides, self.task, state=state)
        return model

    @cached_property
    def language_model(self) -> Any:
        """The model of --lm-path, as fairseq-generate loads it; None without it."""
        path = self.cfg.generation.lm_path
        if path is None:
            return None
        overrides = {"data": self.cfg.task.data}  # which has its dictionary, dict.txt
        state = read_language_model(path, overrides)
        with building("--lm-path", path):
            (model,), _ = checkpoint_utils.load_model_ensemble([path], overrides, None, state=state)
        return self.prepared(model)

    def prepared(self, model: FairseqEncoderDecoderModel) -> FairseqEncoderDecoderModel:
        """Move a model to the device, in the precision of the options, and prepare it for inference."""
        kind = precision(self.cfg)
        if self.cuda or kind != "fp32":
            restore([model])
        if kind == "fp16":
            model.half()
        elif kind == "bf16":
            keep_fingerprint(model, model.encoder)
            model.bfloat16()
        if self.cuda:
            model.cuda(self.device)
        model.prepare_for_inference_(self.cfg)
        return model

    @cached_property
    def max_positions(self) -> tuple[int, int]:
        """Maximum source and target length in tokens, of task and models."""
        longest = utils.resolve_max_positions(self.task.max_positions(), *[one.max_positions() for one in self.models])
        if isinstance(longest, dict):  # of fairseq's multilingual_translation: those of each pair of languages
            longest = longest[f"{self.cfg.task.source_lang}-{self.cfg.task.target_lang}"]
        found: tuple[int, int] = longest
        return found

    def load(self, subset: str) -> Any:
        """Return the dataset of a subset; see `load_subset`."""
        return load_subset(self.task, subset)

    def usable(self, dataset: Any) -> list[int]:
        """Return the sentences that the models can read, sorted by length as in fairseq."""
        skip = self.cfg.dataset.skip_invalid_size_inputs_valid_test
        order = self.task.filter_indices_by_size(dataset.ordered_indices(), dataset, self.max_positions, skip)
        return [int(number) for number in order]

    def batch(self, dataset: Any, numbers: Sequence[int]) -> dict[str, Any]:
        """Return the fairseq sample of these sentences, on the device."""
        sample = dataset.collater([dataset[number] for number in numbers])
        return utils.move_to_cuda(sample, self.device) if self.cuda else sample

    def batches(self, dataset: Any, numbers: Sequence[int], size: int) -> Iterator[dict[str, Any]]:
        """Yield fairseq samples of `size` of these sentences each, in their order, on the device."""
        for first in range(0, len(numbers), size):
            yield self.batch(dataset, numbers[first : first + size])

    def generation(self, **changed: Any) -> DictConfig:
        """Return a copy of fairseq's generation options with changes: decoders may set the beam to 1 in it."""
        options = OmegaConf.create(OmegaConf.to_container(self.cfg.generation))
        assert isinstance(options, DictConfig)
        options.update(changed)
        return options

    def generator(self, models: Sequence[FairseqEncoderDecoderModel] | None = None, **generation: Any) -> Any:
        """Build the task's generator with all generation options, changed by `generation`.

        `models` default to those of --path.
        """
        options = self.generation(**generation)
        given = self.models if models is None else models
        if self.language_model is None:
            return self.task.build_generator(given, options)
        more = {"lm_model": self.language_model, "lm_weight": options.lm_weight}
        return self.task.build_generator(given, options, extra_gen_cls_kwargs=more)

    def decode(self, generator: Any, sample: dict[str, Any]) -> list[list[dict[str, Any]]]:
        """Decode a batch, after --prefix-size tokens of its target; return the hypotheses, the best first.

        `constraints` of the batch are phrases that outputs contain, as fairseq packs them.
        """
        size = self._prefix_size
        prefix: Tensor | None = sample["target"][:, :size] if size > 0 else None
        # Through the task, which may add a first token or a prefix.
        with using_beam(self.models, getattr(generator, "beam_size", 1)):
            hypotheses: list[list[dict[str, Any]]] = self.task.inference_step(
                generator, self.models, sample, prefix, constraints=sample.get("constraints")
            )
        return hypotheses

    def arguments(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return the prefix and first token that the task passes to a generator."""
        recorder = _ArgumentRecorder()
        self.task.inference_step(recorder, self.models, sample, None)
        return recorder.arguments

    def join_subwords(self) -> None:
        """Without an option that joins subwords, choose --remove-bpe by the dictionary's subword marks, and print it.

        BLEU of subwords is higher than BLEU of words, and not comparable with any paper.
        """
        if self.cfg.common_eval.post_process is not None or any(self.text_tools):
            return
        symbols = self.task.target_dictionary.symbols
        kind = "sentencepiece" if any(symbol.startswith("\u2581") for symbol in symbols) else None
        kind = "subword_nmt" if kind is None and any(symbol.endswith("@@") for symbol in symbols) else kind
        if kind is not None:
            self._post_process = self.cfg.common_eval.post_process = kind
            say(f"--remove-bpe: not given; subwords are joined as with --remove-bpe {kind}")

    @cached_property
    def text_tools(self) -> tuple[Any, Any]:
        """The objects of --tokenizer and --bpe, or None."""
        check_sentencepiece(getattr(self.cfg.bpe, "sentencepiece_model", None))
        return self.task.build_tokenizer(self.cfg.tokenizer), self.task.build_bpe(self.cfg.bpe)

    @cached_property
    def target_tokenizer(self) -> Any:
        """The object that splits target text into words, or None: Moses has rules for each language."""
        options = self.cfg.tokenizer
        if getattr(options, "_name", None) != "moses":
            return self.text_tools[0]
        return self.task.build_tokenizer(OmegaConf.merge(options, {"source_lang": options.target_lang}))

    @cached_property
    def target_bpe(self) -> Any:
        """The object that cuts target text into subwords, such as drafts and constraints, or None."""
        if self.target_subwords is None:
            return self.text_tools[1]
        check_sentencepiece(self.target_subwords)
        return SentencepieceBPE(SentencepieceConfig(sentencepiece_model=self.target_subwords))

    @cached_property
    def stripped(self) -> Collection[int]:
        """Target ids left out of the text: EOS, and the task's language token."""
        build = getattr(self.task, "own_generator", self.task.build_generator)
        own = build(self.models, self.generation(beam=1, nbest=1))
        return getattr(own, "symbols_to_strip_from_output", {self.task.target_dictionary.eos()})

    def text(self, tokens: Sequence[int]) -> str:
        """Return raw text: join subwords and detokenise, as --remove-bpe, --bpe and --tokenizer say."""
        tokenizer, bpe = self.text_tools
        # A list: reading numbers out of a tensor takes longer than decoding a sentence with a small model.
        words = [token for token in tokens if token not in self.stripped]
        line = self.task.target_dictionary.string(words, self._post_process)
        line = bpe.decode(line) if bpe is not None else line
        return tokenizer.decode(line) if tokenizer is not None else line


class _ArgumentRecorder:
    """Takes a generator's place to record the prefix and first token that a task passes."""

    arguments: dict[str, Any]

    def generate(self, models: Any, sample: dict[str, Any], **arguments: Any) -> list[Any]:
        self.arguments = arguments
        return []


def precision(cfg: DictConfig) -> str:
    """Return the precision of the weights: fp16, bf16 or fp32."""
    return "fp16" if cfg.common.fp16 else "bf16" if cfg.common.bf16 else "fp32"


def options_of(task: Any) -> Any:
    """Return the options of a task: its `cfg`, or the namespace of fairseq's older tasks."""
    cfg = getattr(task, "cfg", None)
    return task.args if cfg is None else cfg


def set_options(options: Any, **values: Any) -> dict[str, Any]:
    """Set options of a task; return their previous values."""
    before = {name: getattr(options, name) for name in values}
    for name, value in values.items():
        setattr(options, name, value)
    return before


def load_subset(task: Any, subset: str) -> Any:
    """Return the dataset of a subset; raises ConfigurationError if it is missing, empty or misaligned."""
    with subset_errors(subset, options_of(task).data):
        task.load_dataset(subset)
    return task.dataset(subset)


@contextmanager
def subset_errors(subset: str, data: str, option: str = "--gen-subset") -> Iterator[None]:
    """Raise ConfigurationError for a missing, empty, misaligned or truncated subset, or another --dataset-impl.

    `option` named the subset.
    """
    check_binarised(data, subset)
    try:
        yield
    except FileNotFoundError as error:
        remedy = "name one that fairseq-preprocess wrote there"
        if option == "--valid-subset":
            remedy += ", or train without it: {--disable-validation}"
        raise ConfigurationError(option, subset, f"no such subset in {data}", remedy) from error
    except AssertionError as error:
        if "--dataset-impl" in str(error):
            problem = f"{data} was binarised in another format"
            raise ConfigurationError("--dataset-impl", None, problem, "leave it out") from error
        problem = f"{subset} has different numbers of source and target sentences"
        remedy = "binarise it again from text in which line n of one side belongs to line n of the other"
        raise ConfigurationError(None, data, problem, remedy) from error


@contextmanager
def using_beam(models: Sequence[FairseqEncoderDecoderModel], beam: int) -> Iterator[None]:
    """Set how many rows fairseq's BART takes for one sentence; its layers keep the beam of the generator built last."""
    decoders = [model.decoder for model in models if hasattr(model, "set_beam_size")]
    attentions = [layer.encoder_attn for decoder in decoders for layer in decoder.layers]
    before = [attention.beam_size for attention in attentions]
    try:
        for attention in attentions:
            attention.set_beam_size(beam)
        yield
    finally:
        for attention, last in zip(attentions, before, strict=True):
            attention.set_beam_size(last)
