"""`quick_options`: the settings that Hydra composes, and what it refuses."""

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

from tests import quick_options

import_user_module(Namespace(user_dir=str(Path(__file__).parents[1] / "fairseq_plugins")))

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


@pytest.fixture
def hydras_own(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that reads options with Hydra alone."""

    def read(args: Namespace) -> DictConfig:
        with monkeypatch.context() as patch:
            patch.setattr(ConfigLoaderImpl, "_load_configuration_impl", quick_options._compose)
            return convert_namespace_to_omegaconf(args)

    return read


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConfigLoaderImpl, "_load_configuration_impl", quick_options._quickly)


def parsed(kind: str, line: str) -> Namespace:
    return options.parse_args_and_arch(getattr(options, f"get_{kind}_parser")(), input_args=shlex.split(line))


@pytest.mark.parametrize(("kind", "line"), LINES)
def test_same_settings(hydras_own: Any, kind: str, line: str) -> None:
    args = parsed(kind, line)
    expected = OmegaConf.to_container(hydras_own(args))
    # The second time all of it is kept.
    for _ in range(2):
        config = OmegaConf.to_container(convert_namespace_to_omegaconf(args))
        assert config == expected
        assert list(config) == list(expected)


def test_same_refusals(hydras_own: Any) -> None:
    refusals = []
    for wrong in ({"ddp_backend": "none"}, {"max_tokens": "many"}, {"criterion": "none"}, {"path": "a'"}):
        args = Namespace(**{**vars(parsed(*LINES[0])), **wrong})
        said = []
        for read in (hydras_own, convert_namespace_to_omegaconf):
            try:
                said.append(str(OmegaConf.to_container(read(args))))
            except Exception as error:
                said.append(re.sub("0x[0-9a-f]+", "", f"{type(error)}: {error}"))
        assert said[0] == said[1]
        refusals.append(said[0])
    assert "ConfigCompositionException" in refusals[0] and "ddp_backend" in refusals[0]


def test_options_that_are_registered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    args = parsed(*LINES[0])
    assert "more" not in convert_namespace_to_omegaconf(args).criterion
    store, name = ConfigStore.instance().repo["criterion"], "cross_entropy.yaml"
    other = copy.copy(store[name])
    other.node = OmegaConf.create({**OmegaConf.to_container(store[name].node, resolve=False), "more": 7})
    monkeypatch.setitem(store, name, other)
    assert convert_namespace_to_omegaconf(args).criterion.more == 7


def test_what_another_process_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one has parsed and composed another keeps, and does neither again."""
    args = parsed(*LINES[0])
    expected = convert_namespace_to_omegaconf(args)
    known = quick_options.worked_out()
    assert {type(what) for what in known} == {str, list}
    monkeypatch.setattr(quick_options, "_texts", {})
    monkeypatch.setattr(quick_options, "_defaults", {})
    for what in known:
        quick_options.learn(what)
    assert quick_options.worked_out() == known
    monkeypatch.setattr(quick_options, "_compose", None)
    monkeypatch.setattr(quick_options, "OverridesParser", None)
    assert OmegaConf.to_container(convert_namespace_to_omegaconf(args)) == OmegaConf.to_container(expected)
