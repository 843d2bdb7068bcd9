"""The decoding methods: every module of this folder that has a list `METHODS` of `MethodSpec`s."""

import pkgutil
from dataclasses import Field, field, fields, make_dataclass
from importlib import import_module
from typing import Any

from fairseq_plugins.decoding.method import MethodOptions, MethodSpec, plain
from fairseq_plugins.errors import ConfigurationError, flag


def _discover() -> list[MethodSpec]:
    names = (module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))
    modules = [import_module(f"{__name__}.{name}") for name in names]
    specs = [spec for module in modules for spec in getattr(module, "METHODS", ())]
    return sorted(specs, key=lambda spec: (spec.order, spec.name))


METHODS: list[MethodSpec] = _discover()
DECODERS: list[str] = [name for spec in METHODS for name in (spec.name, *spec.aliases)]


def find(name: str) -> MethodSpec:
    """Return the method with a name or alias, one of `DECODERS`."""
    return next(spec for spec in METHODS if str(name) in (spec.name, *spec.aliases))


def chosen(cfg: Any) -> tuple[MethodSpec, MethodOptions]:
    """Return the method that the task's configuration names, and its options."""
    spec = find(cfg.decoding_method)
    return spec, spec.read(cfg).resolved


def decoder_help() -> str:
    """Return the help of `--decoder`."""
    lines = (f"{' = '.join([spec.name, *spec.aliases])}: {spec.summary}" for spec in METHODS)
    with_beam = " and ".join(spec.name for spec in METHODS if spec.searches_beams or spec.build is None)
    return "how to decode. " + "; ".join(lines) + f". All but {with_beam} ignore --beam"


def with_method_options(config: type) -> type:
    """Return the dataclass of a fairseq task's options, extended by those of all methods."""
    own = {declared.name for declared in fields(config)}
    added = [(name, users[0][1].type, _field(users)) for name, users in _options().items() if name not in own]
    return make_dataclass(
        config.__name__.removeprefix("_"), added, bases=(config,), namespace={"__module__": config.__module__}
    )


def _options() -> dict[str, list[tuple[str, Field[Any]]]]:
    """Return every option with a help text: the methods that have it, and the declaration of each."""
    users: dict[str, list[tuple[str, Field[Any]]]] = {}
    for spec in METHODS:
        for declared in fields(spec.options):
            users.setdefault(declared.name, []).append((spec.name, declared))
    return {name: of_option for name, of_option in users.items() if any("help" in own.metadata for _, own in of_option)}


def _field(users: list[tuple[str, Field[Any]]]) -> Any:
    texts: dict[str, list[str]] = {}
    for name, declared in users:
        if "help" in declared.metadata:
            texts.setdefault(declared.metadata["help"], []).append(name)
    help = "; ".join(f"{', '.join(names)}: {text}" for text, names in texts.items())
    return field(default=users[0][1].default, metadata={"help": help})


def check_options(cfg: Any) -> None:
    """Raise ConfigurationError for decoding options that contradict each other or belong to another method."""
    spec = find(cfg.decoding_method)
    own = {option.name for option in fields(spec.options)}
    for name, users in _options().items():
        value = getattr(cfg, name)
        is_ignored = all(declared.metadata.get("ignored_by_other_methods", True) for _, declared in users)
        if name not in own and not is_ignored and plain(value) != users[0][1].default:
            given = None if value is True else plain(value)
            first, *others = (user for user, _ in users)
            problem = f"is for {', '.join([f'{{--decoder {first}}}', *others])}, not {spec.name}"
            raise ConfigurationError(flag(name), given, problem)
    options = spec.read(cfg)
    spec.check(options)
    if cfg.drafter_path is not None and not spec.needs_drafter(options.resolved):
        problem = f"{{--decoder {spec.name}}} uses no drafter"
        raise ConfigurationError("--drafter-path", cfg.drafter_path, problem, "add {--decoder gad}")
