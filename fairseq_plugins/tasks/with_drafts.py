"""Tasks that decode with `--decoder`: a mixin for fairseq's tasks, and checks of its options."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from fairseq.tasks import FairseqTask
from fairseq.tasks.translation_from_pretrained_bart import TranslationFromPretrainedBARTTask
from torch import nn

from fairseq_plugins.checkpoint.loading import read_language_model
from fairseq_plugins.checkpoint.session import options_of
from fairseq_plugins.checkpoint.settings import check_settings
from fairseq_plugins.decoding import methods
from fairseq_plugins.decoding.checks import check_task_options
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.files import destination
from fairseq_plugins.shared.parsing import arguments_of_fairseqs_tool
from fairseq_plugins.tasks.decoding import Decoding
from fairseq_plugins.tasks.own_generator import refuse_refinement_options


class DecodesWithDrafts(FairseqTask):
    """Mixin of tasks whose options include `DecodingOptions`: `build_generator` builds the decoder of `--decoder`."""

    # fairseq's commands have no hook at the end of a run: the summary is printed when the generator is deleted.
    reports_summary = True
    # Whether the weights of its models never change.
    weights_are_fixed = False
    # `build_model` does, of a checkpoint.
    checks_settings = True
    # Of --tokenizer and --bpe, None for none.
    text_tools: tuple[Any, Any] = (None, None)
    cfg: Any

    @cached_property
    def decoding(self) -> Decoding:
        """The builder of the generators."""
        return Decoding(options_of(self))

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> Any:
        """Check the options (`check_options`) before anything is loaded, then set the task up."""
        check_options(cfg)
        return with_args(super().setup_task(cfg, **kwargs))

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> nn.Module:
        """Build a model; check the settings of a checkpoint first."""
        if from_checkpoint:
            check_settings(cfg, ("--path", None))
        return super().build_model(cfg, from_checkpoint)

    def build_generator(self, models: Sequence[nn.Module], args: Any, *more: Any, **named: Any) -> Any:
        """Build the decoder named by `--decoder`; see `Decoding.build`."""
        allowed = named.get("prefix_allowed_tokens_fn")
        return self.decoding.build(
            self, models, args, lambda: self.own_generator(models, args, *more, **named), allowed
        )

    def build_dataset_for_inference(self, *args: Any, **kwargs: Any) -> Any:
        """Make a dataset of raw text, whose lines are numbered."""
        dataset = super().build_dataset_for_inference(*args, **kwargs)
        if self.decoding.numbers is not None:
            self.decoding.numbers.number(dataset)
        return dataset

    def build_tokenizer(self, args: Any) -> Any:
        """Build the object of --tokenizer; `text_tools` keeps it."""
        self.text_tools = (super().build_tokenizer(args), None)
        return self.text_tools[0]

    def build_bpe(self, args: Any) -> Any:
        """Build the object of --bpe; `text_tools` keeps it."""
        self.text_tools = (self.text_tools[0], super().build_bpe(args))
        return self.text_tools[1]

    def own_generator(self, models: Sequence[nn.Module], args: Any, *more: Any, **named: Any) -> Any:
        """Build the task's own generator; raise ConfigurationError for `args` that it does not serve."""
        own = super().build_generator(models, args, *more, **named)
        refuse_refinement_options(own, args)
        return own


def check_options(cfg: Any) -> None:
    """Raise ConfigurationError for decoding options that contradict each other, and files that cannot be used."""
    check_task_options(cfg, methods.find(cfg.decoding_method))
    methods.check_options(cfg)
    stats = None if cfg.stats_file is None else destination(cfg.stats_file, "--stats-file")
    trace = None if cfg.trace_file is None else destination(cfg.trace_file, "--trace-file")
    if stats is not None and stats == trace and not stats.is_direct:
        raise ConfigurationError("--trace-file", cfg.trace_file, "is the file of {--stats-file}", "give another one")
    language_model = arguments_of_fairseqs_tool().get("lm_path")
    if language_model is not None:  # which fairseq-generate reads again and builds: it takes no state
        read_language_model(language_model, read_again=True)


def with_args(task: Any) -> Any:
    """Give a task the `args` that fairseq 0.12's translation_from_pretrained_bart reads and never sets."""
    if isinstance(task, TranslationFromPretrainedBARTTask) and not hasattr(task, "args"):
        task.args = task.cfg
    return task
