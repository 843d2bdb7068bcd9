"""Read checkpoints, check them, and build their models, wherever fairseq does not do that for `--path`."""

import errno
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils, models
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks import TASK_REGISTRY, FairseqTask
from omegaconf import OmegaConf
from torch import Tensor, nn

from fairseq_plugins.checkpoint.mapped_weights import can_map, map_in_small_pages
from fairseq_plugins.checkpoint.settings import MODELS, TASKS, check_settings, check_task_settings, model_name
from fairseq_plugins.errors import ConfigurationError, flag, is_out_of_memory, one_line
from fairseq_plugins.shared.files import nearest_checkpoint, refuse_hugging_face
from fairseq_plugins.shared.parsing import arguments_of_fairseqs_tool

logger = logging.getLogger(__name__)

# Tasks with language tokens in their data that decode as plain translation tasks.
_TASKS_WITH_LANGUAGE_TOKENS = {"multilingual_denoising", "online_backtranslation"}
_OPTIONS_OF_LANGUAGE_TOKENS = ("encoder_langtok", "decoder_langtok", "langtoks")


NOT_OF_FAIRSEQ_TRAIN = (
    "not a fairseq checkpoint (it lacks weights under 'model' or settings under 'cfg'); give one of fairseq-train"
)


def read_checkpoint(path: str, option: str) -> tuple[dict[str, Any], Any]:
    """Return what `read_state` does; raise ConfigurationError also for settings that fairseq must not build."""
    state, model_cfg = read_state(path, option)
    check_settings(model_cfg, (option, path))
    return state, model_cfg


def read_state(path: str, option: str | None, overrides: dict[str, Any] | None = None) -> tuple[dict[str, Any], Any]:
    """Return the state of a checkpoint (weights under "model"), on the CPU, and the options of its model, unchecked.

    Weights are views of the mapped file where `can_map` allows it. `option` named the file, for errors; `overrides` are
    new values of the checkpoint's settings. Raises ConfigurationError for a missing, truncated or foreign file.
    """
    if not os.path.exists(path):
        remedy = f"give the checkpoint that fairseq-train wrote{nearest_checkpoint(path)}"
        raise ConfigurationError(option, path, "no such file", remedy)
    refuse_hugging_face(path, option)
    if not os.path.isfile(path) and not os.path.isdir(path):  # reading a pipe would wait forever
        raise ConfigurationError(option, path, "is not a regular file", "give a checkpoint that fairseq-train wrote")
    try:
        with warnings.catch_warnings():
            # torch warns about files that it then refuses.
            warnings.filterwarnings("ignore", "Detected pickle protocol|'torch.load' received", UserWarning)
            state = (
                _mapped_state(path, overrides)
                if can_map(path)
                else checkpoint_utils.load_checkpoint_to_cpu(path, overrides)
            )
    except Exception as error:
        reason = _unreadable(error)
        if reason is None:
            raise
        raise ConfigurationError(option, path, reason) from error
    weights = state.get("model")
    has_weights = isinstance(weights, dict) and all(isinstance(value, Tensor) for value in weights.values())
    if not has_weights or (state.get("cfg") is None and state.get("args") is None):
        raise ConfigurationError(option, path, NOT_OF_FAIRSEQ_TRAIN)
    return state, _settings(state).model


def _settings(state: dict[str, Any]) -> Any:
    """Return a checkpoint's settings, the older `args` before `cfg`, as fairseq does."""
    return state["cfg"] if state.get("args") is None else convert_namespace_to_omegaconf(state["args"])


def read_with_task(
    path: str,
    option: str,
    overrides: dict[str, Any] | None = None,
    allowed_models: Sequence[str] = MODELS,
    allowed_tasks: Sequence[str] = TASKS,
    read_again: bool = False,
) -> dict[str, Any]:
    """Read a checkpoint from which fairseq builds a task and a model; return its state with checked settings.

    Args:
        path: the file.
        option: option that named the file, for errors.
        overrides: new values of the checkpoint's settings.
        allowed_models: models of fairseq that may be built.
        allowed_tasks: tasks of fairseq that may be built.
        read_again: whether fairseq reads the file itself and ignores this state. Settings are then refused where they
            would be removed, unless the task removes them.

    Raises:
        ConfigurationError: as `read_state`, and for another model or task, or settings that must not be built.
    """
    if read_again:
        path = checkpoint_utils.get_maybe_sharded_checkpoint_filename(path, suffix="", shard_idx=0, num_shards=1)
    state, _ = read_state(path, option, overrides)
    settings = _settings(state)
    kind = check_task_settings(settings.task, (option, path), allowed_tasks)
    removes = not read_again or getattr(kind, "checks_settings", False)
    check_settings(settings.model, (option, path), allowed_models, removes)
    state["args"], state["cfg"] = None, settings  # from `args`, fairseq would make new settings
    return state


def refuse_unsafe_model_of_validation() -> None:
    """Raise ConfigurationError if fairseq-validate must not build its --path: it builds the task in that file, too.

    Only with --task spec_dec or --decoder: other models are the user's own.
    """
    is_validation = "validate" in Path(sys.argv[0] if sys.argv else "").name
    given = arguments_of_fairseqs_tool() if is_validation else {}
    if "decoding_method" in given and given["path"] is not None:
        read_with_task(given["path"], "--path", arguments_of_fairseqs_tool(only_given=True), read_again=True)


def read_language_model(path: str, overrides: dict[str, Any] | None = None, read_again: bool = False) -> dict[str, Any]:
    """Return the state of the language model of --lm-path; arguments and errors are those of `read_with_task`."""
    return read_with_task(path, "--lm-path", overrides, ["transformer_lm"], ["language_modeling"], read_again)


def _mapped_state(path: str, overrides: dict[str, Any] | None) -> dict[str, Any]:
    """Do what fairseq's `load_checkpoint_to_cpu` does, which reads the whole file into memory."""
    state: dict[str, Any] = torch.load(path, map_location="cpu", mmap=True)
    map_in_small_pages(path)
    for name, value in (overrides or {}).items() if state.get("args") is not None else ():
        setattr(state["args"], name, value)
    if state.get("cfg") is not None:
        state["cfg"] = OmegaConf.create(state["cfg"], flags={"allow_objects": True})
        checkpoint_utils.overwrite_args_by_name(state["cfg"], overrides or {})
    upgraded: dict[str, Any] = checkpoint_utils._upgrade_state_dict(state)
    return upgraded


def _unreadable(error: BaseException) -> str | None:
    """Return why a checkpoint could not be read and what to do; None for errors that are not about the file."""
    if isinstance(error, IsADirectoryError):
        return f"is a folder; give a checkpoint{nearest_checkpoint(error.filename)}"
    # torch seeks before the start of a truncated file.
    is_short = isinstance(error, OSError) and error.errno == errno.EINVAL
    if isinstance(error, OSError) and not is_short:
        return f"cannot be read ({error.strerror or error}); give a checkpoint that fairseq-train wrote"
    if isinstance(error, (TypeError, AttributeError)):
        return NOT_OF_FAIRSEQ_TRAIN
    if is_out_of_memory(error) or not isinstance(error, Exception):
        return None
    # A damaged file lets torch's loader fail in any way: with wrong text, an empty stack, an unknown kind ...
    reason = one_line(error, 300) or "unexpected end of file"
    if isinstance(error, LookupError):
        reason = "not made of weights and settings"
    elif "weights_only" in reason or "Weights only" in reason:
        # torch's message explains how to turn safe loading off: do not repeat it, such a file may run any program.
        refused = re.search(r"GLOBAL (\S+)", str(error))
        if refused is not None:
            return (
                f"not loaded: it refers to {refused[1]}, which no checkpoint of fairseq does, and loading it could run "
                "any program; get a checkpoint that fairseq-train wrote"
            )
        reason = "not made of weights and settings"
    return f"truncated or not a fairseq checkpoint ({reason}); copy it again or train it anew"


def check_task(model_cfg: Any, task: Any, option: str) -> None:
    """Raise ConfigurationError for a model trained with a task that adds tokens which `task` does not add.

    A multilingual model translates wrongly without its language tokens, forced first token or own EOS. `model_cfg` has
    the options of model and task from the checkpoint. An unknown task is only a warning, and so is the direction of a
    model that was trained in the other one: with a joined dictionary, it may have been trained in both.
    """
    (source, target), used = _languages(model_cfg), _languages(getattr(task, "cfg", None))
    if source is not None and source != target and used == (target, source):
        problem = f"was trained to translate from {source} to {target}, not {target} to {source}"
        logger.warning(str(ConfigurationError(option, None, problem)))
    name = getattr(model_cfg, "task", None)
    kind = TASK_REGISTRY.get(name)
    kind = getattr(kind, "without_decoder", kind)  # `add_decoder` overrides methods
    token_option = next((key for key in _OPTIONS_OF_LANGUAGE_TOKENS if getattr(model_cfg, key, None)), None)
    if kind is not None and isinstance(task, kind):
        return
    decodes_otherwise = kind is not None and any(
        getattr(kind, method) is not getattr(FairseqTask, method) for method in ("build_generator", "inference_step")
    )
    if decodes_otherwise or token_option is not None or name in _TASKS_WITH_LANGUAGE_TOKENS:
        reason = "" if token_option is None else f" and {{{flag(token_option)}}}"
        problem = f"was trained with {{--task {name}}}{reason}, which adds tokens or limits in decoding"
        remedy = f"give {{--task {name}}} and its options beside {{--decoder}}, in Python load(task=...) or "
        remedy += "wrap(task, decoder=...)"
        raise ConfigurationError(option, None, problem, remedy)
    if name is not None and kind is None:
        problem = f"was trained with {{--task {name}}}, which is unknown here; decodes as a translation"
        logger.warning(str(ConfigurationError(option, None, problem)))


def _languages(options: Any) -> tuple[str | None, str | None]:
    return getattr(options, "source_lang", None), getattr(options, "target_lang", None)


def unwrap(model: nn.Module) -> nn.Module:
    """Return the model inside fairseq's wrappers for distributed training, which may be nested."""
    inner = getattr(model, "module", None)
    return unwrap(inner) if isinstance(inner, nn.Module) else model


def build_model(
    state: dict[str, Any],
    model_cfg: Any,
    path: str,
    task: Any,
    option: str,
    required: type[nn.Module] | None = None,
    **build: Any,
) -> nn.Module:
    """Build a model from what `read_checkpoint` returned and load its weights, on the CPU and in eval mode.

    Args:
        state, model_cfg: checked.
        path: checkpoint file, named by the `option`, for errors.
        task: gives the dictionaries.
        required: class that the model must have.
        build: further arguments of the model's `build_model`.

    Raises ConfigurationError for an unsuitable file.
    """
    kind = model_name(model_cfg)
    model_class = models.ARCH_MODEL_REGISTRY.get(kind) or models.MODEL_REGISTRY.get(kind)
    assert model_class is not None  # as `read_checkpoint` has checked
    if required is not None and not issubclass(model_class, required):
        raise ConfigurationError(option, path, f"holds a {kind}, not a {required.__name__}", "give another checkpoint")
    was_loading = getattr(task, "loading_checkpoint", False)
    task.loading_checkpoint = True
    try:
        with building(option, path):
            model = model_class.build_model(model_cfg, task, **build)
            model.load_state_dict(state["model"], strict=True, model_cfg=model_cfg)
    finally:
        task.loading_checkpoint = was_loading
    return model.eval()


@contextmanager
def building(option: str, path: str) -> Iterator[None]:
    """Build a model and load its weights inside; raises ConfigurationError where that is the checkpoint's fault."""
    try:
        yield
    except Exception as error:
        found = misfit(option, path, error)
        if found is None:
            raise
        raise found from error


def misfit(option: str, path: str, error: Exception) -> ConfigurationError | None:
    """Return the error of a checkpoint of which fairseq cannot build a model or load its weights.

    None for errors that are not about the checkpoint, such as a lack of memory or of a package.
    """
    if is_out_of_memory(error) or isinstance(error, (ConfigurationError, ImportError)):
        return None
    kind = "" if isinstance(error, (RuntimeError, ValueError)) else f"{type(error).__name__}: "
    functions = {frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)}
    if "load_state_dict" in functions:
        problem = "its weights do not fit this data's dictionaries or its own settings"
    else:
        problem = "its model cannot be built with this data's dictionaries and its own settings"
    problem += f" ({kind}{one_line(error, 300)})"
    remedy = "use the data folder and the dictionaries that it was trained with"
    return ConfigurationError(option, path, problem, remedy)
