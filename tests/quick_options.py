"""Cache Hydra's work on fairseq's options between commands: two thirds of the time of a short one.

fairseq passes all its options to Hydra, which parses each with a grammar and composes groups of defaults. This module
caches parsed options and composed defaults by the chosen groups; Hydra then sets only options that differ, on a copy.
"""

import copy
from functools import cache
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig, OmegaConf, open_dict

_compose = ConfigLoaderImpl._load_configuration_impl
# Names of chosen groups -> their registered nodes, and the composed defaults.
_defaults: dict[tuple[str, ...], tuple[list[Any], DictConfig]] = {}


@cache
def _parsed(text: str) -> Override:
    return OverridesParser.create().parse_overrides([text])[0]


def _registered_node(group: Override) -> Any:
    """Return the node registered for a group at present; a later registration may replace it."""
    return ConfigStore.instance().repo.get(group.key_or_group, {}).get(f"{group.value()}.yaml")


def _is_unchanged(config: DictConfig, override: Override) -> bool:
    """Return whether an override sets an option to the plain value that it already has."""
    if override.type != OverrideType.CHANGE or override.package is not None:
        return False
    name, _, option = override.key_or_group.rpartition(".")
    node = OmegaConf.select(config, name) if name else config
    old = node._get_node(option) if isinstance(node, DictConfig) else None
    return old is not None and type(old._value()) is type(override.value()) and old._value() == override.value()


def _compose_cached(loader: ConfigLoaderImpl, config_name: str, overrides: list[str], **how: Any) -> DictConfig:
    """Compose options as Hydra does, without its own `hydra` group."""
    parsed = [_parsed(text) for text in overrides]
    # Only overrides of groups have no dot in their names.
    groups = [override for override in parsed if "." not in override.key_or_group]
    names, nodes = [override.input_line for override in groups], [_registered_node(group) for group in groups]
    kept = _defaults.get((config_name, *names))
    if kept is None or any(old is not new for old, new in zip(kept[0], nodes, strict=True)):
        config = _compose(loader, config_name=config_name, overrides=names, **how)
        with open_dict(config):
            del config["hydra"]
        _defaults[config_name, *names] = kept = nodes, config
    config = copy.deepcopy(kept[1])
    for override in parsed:
        if override not in groups and not _is_unchanged(config, override):
            ConfigLoaderImpl._apply_overrides_to_config([override], config)
    return config


def install() -> None:
    """Use the cache in this process and its forks."""
    ConfigLoaderImpl._load_configuration_impl = _compose_cached
