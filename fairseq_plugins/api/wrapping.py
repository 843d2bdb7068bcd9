"""`wrap`: our decoders for a task that a program has set up itself."""

from pathlib import Path
from types import MethodType
from typing import Any, TypeVar, Unpack

from fairseq.tasks import FairseqTask
from omegaconf import OmegaConf

from fairseq_plugins.api.options import WRAP, WrapOptions, check_names, set_option
from fairseq_plugins.decoding import methods
from fairseq_plugins.errors import unknown_value
from fairseq_plugins.tasks.decoding import Decoding
from fairseq_plugins.tasks.options import DecodingOptions
from fairseq_plugins.tasks.with_drafts import DecodesWithDrafts, check_options, with_args

Task = TypeVar("Task", bound=FairseqTask)


def wrap(task: Task, *, decoder: str, drafter: str | Path | None = None, **options: Unpack[WrapOptions]) -> Task:
    """Let any fairseq task decode with one of our decoders.

        models, _, task = checkpoint_utils.load_model_ensemble_and_task([PATH], arg_overrides={...})
        wrap(task, decoder="greedy")
        generator = task.build_generator(models, Namespace(beam=1, max_len_b=200))
        hypotheses = task.inference_step(generator, models, sample)

    Ours takes lengths, penalties and special symbols from the task's own generator, and prefixes and first tokens from
    the task's `inference_step`. It decodes with the weights that the models have at each batch: those that training or
    `load_state_dict` has changed are read again.

    Args:
        task: of any kind that decodes with fairseq's beam search: translation_multi_simple_epoch (M2M-100, NLLB),
            translation_from_pretrained_bart (mBART), multilingual_translation, speech_to_text, BART's ...
        decoder: name of a decoding method, as for --decoder.
        drafter: checkpoint of the drafter, for methods that need one.
        options: see `WrapOptions`: options of decoding, named as on the command line with underscores: block_size=5 ...

    Returns:
        the same task. Wrapping it again replaces the decoder.

    Raises:
        ConfigurationError: for unknown or contradicting options; from `build_generator`, for models that the decoder
            cannot run.
    """
    if decoder not in methods.DECODERS:
        raise unknown_value("--decoder", decoder, methods.DECODERS)
    cfg = OmegaConf.structured(DecodingOptions(profile=False, bf16=False, seed=1))
    check_names(options, WRAP)
    for name, value in options.items():
        set_option(cfg, name, value)
    cfg.decoding_method, cfg.drafter_path = decoder, None if drafter is None else str(drafter)
    check_options(cfg)
    decoding = Decoding(cfg)
    is_ours = isinstance(task, DecodesWithDrafts)
    own = task.own_generator if is_ours else MethodType(type(task).build_generator, task)

    def build_generator(models: Any, args: Any, *more: Any, **named: Any) -> Any:
        allowed = named.get("prefix_allowed_tokens_fn")
        return decoding.build(task, models, args, lambda: own(models, args, *more, **named), allowed)

    changed = with_args(task)
    changed.build_generator = build_generator
    # A program has its own output: no summary line, unless it asks for a file.
    changed.reports_summary = cfg.stats_file is not None or cfg.trace_file is not None
    return task
