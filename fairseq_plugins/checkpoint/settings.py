"""Check the settings of a checkpoint before fairseq builds a model from them.

fairseq's builders evaluate some settings as Python code (`adaptive_softmax_cutoff`, the layers of `fconv`), and load
further files that others name. PyTorch's safe loading does not prevent either: settings are plain text.
"""

import argparse
import ast
import enum
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.models.transformer import TransformerModel
from fairseq.models.transformer.transformer_config import DecoderConfig, EncDecBaseConfig, QuantNoiseConfig
from fairseq.tasks import TASK_REGISTRY, FairseqTask
from omegaconf import OmegaConf, open_dict

from fairseq_plugins.errors import ConfigurationError

# Models of fairseq whose builders evaluate nothing but numbers, and need no file. Classes of other packages, such as
# ours and those of --user-dir, are code that the user has chosen.
MODELS = ("transformer", "transformer_align", "multilingual_transformer", "bart", "s2t_transformer")
# Tasks of fairseq that evaluate no settings but `left_pad_source` and `left_pad_target`.
TASKS = (
    *("translation", "translation_multi_simple_epoch", "multilingual_translation"),
    *("translation_from_pretrained_bart", "speech_to_text"),
)
# Files that weights are copied from in training. A loaded model has its own weights.
_FILES_OF_TRAINING = (
    *("encoder_embed_path", "decoder_embed_path"),
    *("load_pretrained_encoder_from", "load_pretrained_decoder_from"),
)
# Groups of settings that a configuration of fairseq-hydra-train may have.
_GROUPS = {"encoder": EncDecBaseConfig, "decoder": DecoderConfig, "quant_noise": QuantNoiseConfig}
# Text without quotes and brackets calls nothing when it is evaluated, and without `**` and `<<` makes no huge number.
_HARMLESS = re.compile(r"(?!.*(\*\*|<<))[^()\[\]{}'\"`\\]*", re.DOTALL)
_MAX_DEPTH = 10


def model_name(model_cfg: Any) -> str:
    """Return the name of a model in fairseq's registry, from its settings, as fairseq finds it."""
    return getattr(model_cfg, "_name", None) or getattr(model_cfg, "arch", None) or ""


def check_settings(
    model_cfg: Any, source: tuple[str, str | None], allowed: Sequence[str] = MODELS, removes: bool = True
) -> None:
    """Check the settings of a model before it is built; remove those that name files of its training.

    Text that the model's class does not declare and that could be code is replaced by None, and groups of settings by
    the flat names of a command line.

    Args:
        model_cfg: settings of a model from a checkpoint; changed in place.
        source: the option that named the checkpoint, and its file, for errors.
        allowed: models of fairseq that may be built.
        removes: False if the model is built from another copy of the settings: raises ConfigurationError for what
            would be removed.

    Raises:
        ConfigurationError: for an architecture whose builder evaluates text or loads other files, and a setting of
            another type than the architecture declares, or that could be code.
    """
    declared = _declared(model_name(model_cfg), source, allowed)
    _flatten(model_cfg, source)
    values = as_dict(model_cfg)
    if values is None:
        problem = f"its settings are a {type(model_cfg).__name__}"
        raise ConfigurationError(*source, problem, "give another checkpoint")
    hidden = [name for name in _FILES_OF_TRAINING if values.get(name) is not None]
    for name, value in values.items():
        option = declared.get(name)
        if name in hidden:
            continue
        if option is not None:
            _check_declared(name, value, option, source)
        elif isinstance(value, str) and not _is_harmless(value):
            hidden.append(name)
        else:
            _check_value(name, value, source)
    if hidden and not removes:
        problem = f"its setting {hidden[0]} is {_shown(values[hidden[0]])}, which fairseq could read or run"
        raise ConfigurationError(*source, problem, "if you trust it, leave out {--task spec_dec} and {--decoder}")
    for name in hidden:
        _set(model_cfg, name, None)


def _flatten(model_cfg: Any, source: tuple[str, str | None]) -> None:
    """Give a Transformer's settings flat names, such as `encoder_embed_dim` for `embed_dim` of `encoder`.

    fairseq reads no flat name of a group that is there, but fairseq-hydra-train puts defaults in them.
    """
    name = model_name(model_cfg)
    if not issubclass(ARCH_MODEL_REGISTRY.get(name) or MODEL_REGISTRY[name], TransformerModel):
        return
    given = as_dict(model_cfg) or {}
    for group, kind in _GROUPS.items():
        if given.get(group) is None:
            continue
        try:
            settings = asdict(kind(**given[group]))
        except TypeError as error:
            raise ConfigurationError(*source, f"its setting {group} is no group of a Transformer's", _REMEDY) from error
        for key in settings.keys() - {"_name"}:
            _set(model_cfg, f"{group}_{key}", settings[key])
        if OmegaConf.is_config(model_cfg):
            with open_dict(model_cfg):
                del model_cfg[group]
        else:
            delattr(model_cfg, group)


def _set(model_cfg: Any, name: str, value: Any) -> None:
    if OmegaConf.is_config(model_cfg):
        with open_dict(model_cfg):
            model_cfg[name] = value
    else:
        setattr(model_cfg, name, value)


def check_task_settings(task_cfg: Any, source: tuple[str, str | None], allowed: Sequence[str]) -> type[FairseqTask]:
    """Check the settings of a checkpoint's task, which fairseq may evaluate, before it is built; return its class.

    Raises ConfigurationError for a task of fairseq that is not among those `allowed`, and for settings that could be
    code. `source` is as for `check_settings`.
    """
    values = as_dict(task_cfg) or {}
    name = values.get("_name") or values.get("task")
    kind = TASK_REGISTRY.get(name)
    if kind is None or (kind.__module__.partition(".")[0] == "fairseq" and name not in allowed):
        problem = f"was trained with another task, {_shown(name)}"
        raise ConfigurationError(*source, problem, f"give a model of {{--task {allowed[0]}}}")
    for key in ("left_pad_source", "left_pad_target"):
        _check_value(key, values.get(key), source)
    return kind


def _declared(name: str, source: tuple[str, str | None], allowed: Sequence[str]) -> dict[str, argparse.Action]:
    """Return the options that a model's class declares; raise ConfigurationError for a class that is not allowed."""
    model_class = ARCH_MODEL_REGISTRY.get(name) or MODEL_REGISTRY.get(name)
    if model_class is None:
        raise ConfigurationError(*source, f"unknown model {name[:50]!r}", "pass the {--user-dir} that defines it")
    is_fairseqs = model_class.__module__.partition(".")[0] == "fairseq"
    if is_fairseqs and model_class not in [MODEL_REGISTRY[model] for model in allowed]:
        problem = f"holds a {model_class.__name__} ({name}), which is not decoded here: fairseq may run code from the "
        problem += "settings of such a file, or load other files"
        raise ConfigurationError(*source, problem, "if you trust it, use fairseq without this plugin")
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    model_class.add_args(parser)
    return {action.dest: action for action in parser._actions}


def _check_declared(name: str, value: Any, option: argparse.Action, source: tuple[str, str | None]) -> None:
    is_number = option.type in (int, float) or option.nargs == 0
    if is_number and value is not None and not isinstance(value, (bool, int, float)):
        raise ConfigurationError(*source, f"its setting {name} is {_shown(value)}, not a number", _REMEDY)
    if option.choices is not None and isinstance(value, str) and not re.fullmatch(r"[\w.+-]+", value):
        raise ConfigurationError(*source, f"its setting {name} is {_shown(value)}, not a name", _REMEDY)
    _check_value(name, value, source)


_REMEDY = "give a checkpoint as fairseq-train writes it"


def _check_value(name: str, value: Any, source: tuple[str, str | None], depth: int = 0) -> None:
    if value is None or isinstance(value, (bool, int, float, enum.Enum)):
        return
    if isinstance(value, str):
        if not _is_harmless(value):
            raise ConfigurationError(*source, f"its setting {name} is {_shown(value)}, which could be code", _REMEDY)
        return
    inner = as_dict(value)
    if inner is None and (isinstance(value, (list, tuple)) or OmegaConf.is_list(value)):
        inner = {str(number): item for number, item in enumerate(value)}
    if inner is None or depth > _MAX_DEPTH:
        raise ConfigurationError(*source, f"its setting {name} is a {type(value).__name__}", _REMEDY)
    for key, item in inner.items():
        _check_value(f"{name}.{key}"[:100], item, source, depth + 1)


def as_dict(value: Any) -> dict[str, Any] | None:
    """Return the entries of settings that have some, without resolving references; else None."""
    if OmegaConf.is_config(value):
        value = OmegaConf.to_container(value, resolve=False)
    if isinstance(value, argparse.Namespace):
        value = vars(value)
    return {str(key): item for key, item in value.items()} if isinstance(value, Mapping) else None


def _is_harmless(text: str) -> bool:
    """Return whether text does nothing when it is evaluated: it calls nothing, or it is a literal."""
    if "${" in text:  # OmegaConf puts other settings in its place, which could close the quotes of a literal
        return False
    if _HARMLESS.fullmatch(text):
        return True
    for parse in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            parse(text)
            return True
    return False


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
