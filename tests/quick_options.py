"""Hydra's part in fairseq's options, kept from one command to the next: it takes most of a second of every command.

fairseq hands all its options to Hydra, which parses each of them by a grammar and puts together groups of defaults.
Here texts that were parsed are kept, and so are the defaults of groups that were chosen; options are then set on a copy
by Hydra itself. What comes out is the same: tests/test_quick_options.py.
"""

import copy
import inspect
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import fairseq
from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, open_dict

_initialize = sys.modules["hydra.initialize"]
_find_caller = _initialize.detect_calling_file_or_module_from_stack_frame
_compose = ConfigLoaderImpl._load_configuration_impl
_texts: dict[str, Override] = {}
_defaults: dict[tuple[str, ...], tuple[list[Any], DictConfig]] = {}


def _parsed(text: str) -> Override:
    if text not in _texts:
        _texts[text] = OverridesParser.create().parse_overrides([text])[0]
    return _texts[text]


def _registered(groups: list[Override]) -> list[Any]:
    """What classes of options stand for these choices now: they may be registered again."""
    store = ConfigStore.instance().repo
    return [store.get(group.key_or_group, {}).get(f"{group.value()}.yaml") for group in groups]


def _quickly(loader: ConfigLoaderImpl, config_name: str, overrides: list[str], **how: Any) -> DictConfig:
    """As Hydra composes them, without its own settings."""
    parsed = [_parsed(text) for text in overrides]
    # Options of a group have a dot in their names.
    groups = [override for override in parsed if "." not in override.key_or_group]
    names, registered = tuple(override.input_line for override in groups), _registered(groups)
    kept = _defaults.get((config_name, *names))
    if kept is None or any(old is not new for old, new in zip(kept[0], registered, strict=True)):
        config = _compose(loader, config_name=config_name, overrides=list(names), **how)
        with open_dict(config):
            del config["hydra"]
        _defaults[config_name, *names] = kept = (registered, config)
    config = copy.deepcopy(kept[1])
    ConfigLoaderImpl._apply_overrides_to_config([override for override in parsed if override not in groups], config)
    return config


def _caller(depth: int) -> tuple[str | None, str | None]:
    """As Hydra finds it, without looking for the source of all frames."""
    with mock.patch.object(inspect, "stack", lambda: inspect.getouterframes(sys._getframe(1), 0)):
        return _find_caller(depth + 1)


def install() -> None:
    """Let Hydra compose so in this process, and in those that it forks."""
    ConfigLoaderImpl._load_configuration_impl = _quickly
    _initialize.detect_calling_file_or_module_from_stack_frame = _caller


def worked_out() -> list[str | list[str]]:
    """What is kept, to be told to `learn` of another process: texts, and choices of groups whose defaults are kept."""
    return [*_texts, *(list(names) for names in _defaults)]


def learn(what: str | list[str]) -> None:
    """Work out what another process had to, and keep it."""
    if isinstance(what, str):
        _parsed(what)
        return
    config_name, *names = what
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(Path(fairseq.__file__).parent / "config"), version_base="1.1"):
        compose(config_name, overrides=names)
