"""Cache Hydra's work on fairseq's options between commands, since it takes most of a second of each.

fairseq passes all its options to Hydra, which parses each with a grammar and composes groups of defaults. This module
caches parsed options and composed defaults by the chosen groups; Hydra then sets only options that differ, on a copy.
Plain values are read and set without OmegaConf's handling of interpolations and containers. Results are the same
(tests/test_quick_options.py).
"""

import inspect
import io
import pickle
import sys
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import fairseq
from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import AnyNode, DictConfig, ValueNode, open_dict
from omegaconf import omegaconf as omegaconf_module
from omegaconf.base import Metadata

_initialize = sys.modules["hydra.initialize"]
_find_caller = _initialize.detect_calling_file_or_module_from_stack_frame
_compose = ConfigLoaderImpl._load_configuration_impl
_node_wrap = omegaconf_module._node_wrap
_set_value = DictConfig._set_value_impl
_get = DictConfig._get_impl
_texts: dict[str, Override] = {}
# Names of chosen groups -> their registered nodes, and the composed defaults.
_defaults: dict[tuple[str, ...], tuple[list[Any], "_PickledConfig"]] = {}


class _PickledConfig:
    """A pickled config: unpickling is ten times faster than copying. Classes, some without a name, are kept by id."""

    def __init__(self, config: DictConfig) -> None:
        classes: dict[str, type] = {}

        class Pickler(pickle.Pickler):
            def persistent_id(self, value: Any) -> str | None:
                if not isinstance(value, type):
                    return None
                classes[str(id(value))] = value
                return str(id(value))

        class Unpickler(pickle.Unpickler):
            def persistent_load(self, number: str) -> type:
                return classes[number]

        file = io.BytesIO()
        Pickler(file).dump(config)
        self.pickled, self.unpickler = file.getvalue(), Unpickler

    def copy(self) -> DictConfig:
        return self.unpickler(io.BytesIO(self.pickled)).load()


def _parsed(text: str) -> Override:
    if text not in _texts:
        _texts[text] = OverridesParser.create().parse_overrides([text])[0]
    return _texts[text]


def _registered_nodes(groups: list[Override]) -> list[Any]:
    """Return the nodes registered for these groups at present; a later registration may replace them."""
    store = ConfigStore.instance().repo
    return [store.get(group.key_or_group, {}).get(f"{group.value()}.yaml") for group in groups]


def _is_unchanged(config: DictConfig, override: Override) -> bool:
    """Return whether an override sets an option to the plain value that it already has."""
    if override.type != OverrideType.CHANGE or override.package is not None:
        return False
    node: Any = config
    for name in override.key_or_group.split("."):
        content = node.__dict__.get("_content")
        if not isinstance(node, DictConfig) or not isinstance(content, dict) or name not in content:
            return False
        node = content[name]
    if not isinstance(node, ValueNode):
        return False
    value, old = override.value(), node._value()
    return type(value) is type(old) and value == old


def _compose_cached(loader: ConfigLoaderImpl, config_name: str, overrides: list[str], **how: Any) -> DictConfig:
    """Compose options as Hydra does, without its own `hydra` group."""
    parsed = [_parsed(text) for text in overrides]
    # Only overrides of groups have no dot in their names.
    groups = [override for override in parsed if "." not in override.key_or_group]
    names, registered = tuple(override.input_line for override in groups), _registered_nodes(groups)
    kept = _defaults.get((config_name, *names))
    if kept is None or any(old is not new for old, new in zip(kept[0], registered, strict=True)):
        config = _compose(loader, config_name=config_name, overrides=list(names), **how)
        with open_dict(config):
            del config["hydra"]
        _defaults[config_name, *names] = kept = (registered, _PickledConfig(config))
    config = kept[1].copy()
    for override in parsed:
        if override not in groups and not _is_unchanged(config, override):
            ConfigLoaderImpl._apply_overrides_to_config([override], config)
    return config


class _Frames:
    """Replaces the list of `inspect.stack`: makes frames on request, since finding all their sources is slow."""

    def __init__(self) -> None:
        self.innermost = sys._getframe(1)

    def __getitem__(self, depth: int) -> inspect.FrameInfo:
        frame: FrameType | None = self.innermost
        for _ in range(depth):
            assert frame is not None
            frame = frame.f_back
        assert frame is not None
        code = frame.f_code
        return inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None)


def _find_caller_quickly(depth: int) -> tuple[str | None, str | None]:
    """Find the calling module as Hydra does, without reading all frames."""
    with mock.patch.object(inspect, "stack", _Frames):
        return _find_caller(depth + 1)


def _is_plain(value: Any) -> bool:
    """Return whether a value is neither a container nor special, as "${...}" and "???" are."""
    return value is None or type(value) in (bool, int, float) or type(value) is str and "$" not in value != "???"


def _quick_node(parent: Any, is_optional: bool, value: Any, key: Any, ref_type: Any = Any) -> Any:
    """Wrap a value in a node as OmegaConf does."""
    if ref_type is not Any or not _is_plain(value):
        return _node_wrap(parent, is_optional, value, key, ref_type)
    node = AnyNode.__new__(AnyNode)
    metadata = Metadata(ref_type=Any, object_type=None, optional=True, key=key)
    node.__dict__.update(_metadata=metadata, _parent=parent, _flags_cache=None, _val=value)
    return node


def _quick_set_value(config: DictConfig, value: Any, flags: dict[str, bool] | None = None) -> None:
    """Set the contents of a config from a dictionary as OmegaConf does."""
    metadata = config._metadata
    untyped = metadata.ref_type is metadata.key_type is metadata.element_type is Any
    simple = (dict, list)
    if (
        type(value) is not dict
        or not untyped
        or not all(type(name) is str and (type(item) in simple or _is_plain(item)) for name, item in value.items())
    ):
        return _set_value(config, value, flags)
    config._validate_set(key=None, value=value)
    config.__dict__["_content"] = {name: _quick_node(config, True, item, name) for name, item in value.items()}
    metadata.object_type = dict


def _quick_get(config: DictConfig, key: Any, *more: Any, **how: Any) -> Any:
    """Return the value of a key as OmegaConf does."""
    content = config.__dict__["_content"]
    node = content.get(key) if type(content) is dict and type(key) is str else None
    if isinstance(node, ValueNode) and _is_plain(node._value()):
        return node._value()
    return _get(config, key, *more, **how)


def install() -> None:
    """Use the cache in this process and its forks."""
    ConfigLoaderImpl._load_configuration_impl = _compose_cached
    _initialize.detect_calling_file_or_module_from_stack_frame = _find_caller_quickly
    omegaconf_module._node_wrap = _quick_node
    DictConfig._set_value_impl = _quick_set_value
    DictConfig._get_impl = _quick_get


def cache_keys() -> list[str | list[str]]:
    """Return what is cached, for `fill_cache` of another process: options, and lists of groups."""
    return [*_texts, *(list(names) for names in _defaults)]


def fill_cache(key: str | list[str]) -> None:
    """Parse an option, or compose groups, into the cache."""
    if isinstance(key, str):
        _parsed(key)
        return
    config_name, *names = key
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(Path(fairseq.__file__).parent / "config"), version_base="1.1"):
        compose(config_name, overrides=names)
