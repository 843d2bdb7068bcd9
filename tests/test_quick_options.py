"""`quick_options`: the same configurations and errors as Hydra's."""

import copy
import re
import shlex
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.utils import import_user_module
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf
from omegaconf import omegaconf as omegaconf_module

from tests import quick_options

import_user_module(Namespace(user_dir=str(Path(__file__).parents[1] / "fairseq_plugins")))

FIND_CALLER = "detect_calling_file_or_module_from_stack_frame"
LINES = [
    ("training", "data --task translation --arch transformer --lr 0.02,0.01 --max-tokens 5 --optimizer adam"),
    (
        "training",
        "data --task spec_dec --arch block_nat --criterion glat_loss --optimizer adam --adam-betas '(0.9, 0.98)' "
        "--lr-scheduler inverse_sqrt --max-update 3 --save-dir 'a folder/of €' --block-size 4 --no-progress-bar",
    ),
    ("training", "data --task language_modeling --arch transformer_lm --optimizer sgd --update-freq 2,3 --seed 9"),
    ("generation", "data --task spec_dec --path one.pt:it\\'s.pt --decoder gad++ --tau 0.5 --prefix-size 2 --nbest 1"),
    ("generation", "data --path 'x, [y]' --bpe gpt2 --scoring sacrebleu --remove-bpe sentencepiece --lenpen 1e-3"),
    (
        "interactive_generation",
        "data --path model.pt --tokenizer moses --source-lang en --target-lang de --buffer-size 7",
    ),
]


def without_shortcuts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(omegaconf_module, "_node_wrap", quick_options._node_wrap)
    patch.setattr(DictConfig, "_set_value_impl", quick_options._set_value)
    patch.setattr(DictConfig, "_get_impl", quick_options._get)
    patch.setattr(quick_options._initialize, FIND_CALLER, quick_options._find_caller)


@pytest.fixture
def hydras_own(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that reads options with Hydra and OmegaConf, without the cache."""

    def read(args: Namespace) -> DictConfig:
        with monkeypatch.context() as patch:
            patch.setattr(ConfigLoaderImpl, "_load_configuration_impl", quick_options._compose)
            without_shortcuts(patch)
            return convert_namespace_to_omegaconf(args)

    return read


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConfigLoaderImpl, "_load_configuration_impl", quick_options._compose_cached)
    quick_options.install()


def parsed(kind: str, line: str) -> Namespace:
    return options.parse_args_and_arch(getattr(options, f"get_{kind}_parser")(), input_args=shlex.split(line))


@pytest.mark.parametrize(("kind", "line"), LINES)
def test_same_settings(hydras_own: Any, kind: str, line: str) -> None:
    args = parsed(kind, line)
    expected = OmegaConf.to_container(hydras_own(args))
    # The second time everything is cached.
    for _ in range(2):
        config = OmegaConf.to_container(convert_namespace_to_omegaconf(args))
        assert config == expected
        assert list(config) == list(expected)


def test_same_refusals(hydras_own: Any) -> None:
    refusals = []
    for wrong in ({"ddp_backend": "none"}, {"max_tokens": "many"}, {"criterion": "none"}, {"path": "a'"}):
        args = Namespace(**{**vars(parsed(*LINES[0])), **wrong})
        errors = []
        for read in (hydras_own, convert_namespace_to_omegaconf):
            try:
                errors.append(str(OmegaConf.to_container(read(args))))
            except Exception as error:
                errors.append(re.sub("0x[0-9a-f]+", "", f"{type(error)}: {error}"))
        assert errors[0] == errors[1]
        refusals.append(errors[0])
    assert "ConfigCompositionException" in refusals[0] and "ddp_backend" in refusals[0]


def test_same_configs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Configs of plain and other values equal OmegaConf's, types and flags included, and so do errors of keys."""

    class Other:
        pass

    def made() -> list[Any]:
        configs: list[Any] = []
        plain = {"one": 1, "half": 0.5, "no": None, "yes": True, "text": "a b", "list": [1, None], "more": {"x": {}}}
        special = {"one": 1, "again": "${one}", "lost": "${none}", "missing": "???", "more": {"up": "${..one}"}, 3: 4}
        for content in (plain, special, {"kept": OmegaConf.create(plain), "bad": Other()}, {"bad": {1}}):
            configs.append("-")
            try:
                config = OmegaConf.create(content)
            except Exception as error:
                configs.append(re.sub("0x[0-9a-f]+", "", f"{type(error)}: {error}"))
                continue
            OmegaConf.set_struct(config, True)
            nodes = [config]
            for node in nodes:
                configs.append((type(node), dict(vars(node._metadata).items()), str(node)))
                if isinstance(node, DictConfig):
                    nodes += [node._get_node(key) for key in node]
            for key in [*content, "other", 5]:
                for read in (
                    lambda c, k: c[k],
                    lambda c, k: c.get(k, 7),
                    lambda c, k: getattr(c, str(k)),
                    OmegaConf.select,
                ):
                    try:
                        configs.append(read(config, key))
                    except Exception as error:
                        configs.append(re.sub("0x[0-9a-f]+", "", f"{type(error)}: {error}"))
            try:
                config.one = "two"
                config.text = 8
            except Exception as error:
                configs.append(f"{type(error)}: {error}")
            configs.append(str(config))
        return configs

    quick = made()
    with monkeypatch.context() as patch:
        without_shortcuts(patch)
        assert quick == made()
    assert len(quick) > 80


def test_options_that_are_registered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    args = parsed(*LINES[0])
    assert "more" not in convert_namespace_to_omegaconf(args).criterion
    store, name = ConfigStore.instance().repo["criterion"], "cross_entropy.yaml"
    other = copy.copy(store[name])
    other.node = OmegaConf.create({**OmegaConf.to_container(store[name].node, resolve=False), "more": 7})
    monkeypatch.setitem(store, name, other)
    assert convert_namespace_to_omegaconf(args).criterion.more == 7


def test_settings_of_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of one process fill the cache of another, which then parses and composes nothing."""
    args = parsed(*LINES[0])
    expected = convert_namespace_to_omegaconf(args)
    known = quick_options.cache_keys()
    assert {type(what) for what in known} == {str, list}
    monkeypatch.setattr(quick_options, "_texts", {})
    monkeypatch.setattr(quick_options, "_defaults", {})
    for what in known:
        quick_options.fill_cache(what)
    assert quick_options.cache_keys() == known
    monkeypatch.setattr(quick_options, "_compose", None)
    monkeypatch.setattr(quick_options, "OverridesParser", None)
    assert OmegaConf.to_container(convert_namespace_to_omegaconf(args)) == OmegaConf.to_container(expected)
