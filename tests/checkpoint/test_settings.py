"""Nothing in a checkpoint's settings is executed, whichever command loads it."""

import shutil
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_NAME_REGISTRY, ARCH_MODEL_REGISTRY
from omegaconf import OmegaConf

import fairseq_plugins
from fairseq_plugins.benchmarks import ctranslate
from fairseq_plugins.checkpoint.loading import read_language_model, read_with_task, refuse_unsafe_model_of_validation
from fairseq_plugins.checkpoint.settings import as_dict, check_settings
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.tasks.beside import add_decoder
from tests.conftest import TINY, Corpus
from tests.errors import error_about
from tests.language_model import write_language_model
from tests.support import make_args, run_in_process

ALLOWED = ["transformer", "transformer_align", "multilingual_transformer", "bart", "s2t_transformer"]


def command(folder: Path) -> str:
    """Return an expression that makes a file; fairseq evaluates it as a number, a list or a switch."""
    return f"__import__('pathlib').Path('{folder}/planted').touch() or [9]"


def settings_of(arch: str) -> Namespace:
    """Return the default settings of an architecture, as a checkpoint has them."""
    parser = ArgumentParser(allow_abbrev=False)
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    given = vars(parser.parse_args([]))
    args = Namespace(arch=arch, task="translation", data="DATA", **{n: v for n, v in given.items() if v is not None})
    if arch in ARCH_CONFIG_REGISTRY:
        ARCH_CONFIG_REGISTRY[arch](args)
    return args


@pytest.mark.parametrize("make", [OmegaConf.create, lambda settings: Namespace(**settings)])
def test_groups_of_fairseq_hydra_train_become_the_options_of_a_command_line(make: Callable[[Any], Any]) -> None:
    """fairseq reads no flat option of a group that is there; an embedding's file is one of training in either."""
    groups = {"encoder": {"embed_dim": 48, "embed_path": "/gone"}, "decoder": {"embed_dim": 32, "layers": 2}}
    of_both = {"_name": "transformer", **groups, "encoder_layers": 3, "decoder_embed_dim": 512, "dropout": 0.1}
    settings = make(of_both)
    with error_about("--path", "its setting encoder_embed_path is '/gone', which fairseq could read"):
        check_settings(make(of_both), ("--path", None), removes=False)
    check_settings(settings, ("--path", None))
    read = as_dict(settings) or {}
    assert read.keys().isdisjoint(groups) and read["dropout"] == 0.1
    assert (read["encoder_embed_dim"], read["encoder_layers"], read["encoder_embed_path"]) == (48, 6, None)
    assert (read["decoder_embed_dim"], read["decoder_output_dim"], read["decoder_layers"]) == (32, 32, 2)
    with error_about("--path", "its setting decoder is no group"):
        check_settings(make({**of_both, "decoder": "eight"}), ("--path", None))
    other = OmegaConf.create({"_name": "multilingual_transformer", "encoder": {"layers": 1}})
    check_settings(other, ("--path", None))
    assert other.encoder.layers == 1


@pytest.mark.parametrize("arch", sorted(ARCH_MODEL_REGISTRY))
def test_no_setting_of_any_architecture_is_evaluated(arch: str, tmp_path: Path) -> None:
    """A command in each setting is refused, or removed before the model is built."""
    try:
        defaults = settings_of(arch)
    except (TypeError, AttributeError):  # hydra's own, or fairseq's faults
        defaults = Namespace(arch=arch)
    try:
        check_settings(deepcopy(defaults), ("--path", None))
    except ConfigurationError as refusal:
        assert "is not decoded here" in str(refusal)
        return
    kind = ARCH_MODEL_REGISTRY[arch]
    assert (
        kind.__module__.startswith(("fairseq_plugins.", "train_scripts.")) or ARCH_MODEL_NAME_REGISTRY[arch] in ALLOWED
    )
    parser = ArgumentParser(allow_abbrev=False)
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    planted = command(tmp_path)
    for name in {*vars(defaults), *(action.dest for action in parser._actions)} - {"arch", "help"}:
        for value in (planted, [planted], {"a": [planted]}):
            args = Namespace(**{**vars(defaults), name: value})
            try:
                check_settings(args, ("--path", None))
            except ConfigurationError as refusal:
                assert name in str(refusal)
            else:
                assert getattr(args, name) is None, name


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"encoder_layers": "2"}, "encoder_layers is '2', not a number"),
        ({"activation_fn": "relu --user-dir x"}, "activation_fn is .*, not a name"),
        ({"dropout": torch.zeros(1)}, "dropout is .*, not a number"),
        ({"extra": torch.zeros(1)}, "extra is a Tensor"),
        ({"adaptive_softmax_cutoff": "9**9**9"}, "adaptive_softmax_cutoff is .*, which could be code"),
        ({"adaptive_softmax_cutoff": '"${extra}"', "extra": '" or f() or "'}, "which could be code"),
        ({"extra": {"a": [Namespace(b="f()")]}}, r"extra.a.0.b is 'f\(\)', which could be code"),
        ({"arch": None}, "unknown model ''"),
        ({"_name": "lstm"}, r"holds a LSTMModel \(lstm\), which is not decoded here"),
    ],
)
def test_the_setting_is_named(settings: dict[str, Any], named: str) -> None:
    for made in (Namespace, lambda **all: OmegaConf.create(all, flags={"allow_objects": True})):
        if made is not Namespace and any(isinstance(value, (torch.Tensor, dict)) for value in settings.values()):
            continue
        with error_about("--path", f"x.pt: .*{named}"):
            check_settings(made(**{**vars(make_args(arch="transformer")), **settings}), ("--path", "x.pt"))


def test_ordinary_text_is_kept() -> None:
    kept = {
        "data": "/data/text 1/data-bin:/other",
        "eval_bleu_args": '{"beam": 5, "sampling": true}',
        "adam_betas": "(0.9, 0.98)",
        "adaptive_softmax_cutoff": "10000,20000",
        "lang_pairs": "en-de,de-en",
    }
    args = make_args(arch="transformer", encoder_embed_path="/dev/zero", restore_file="x(1).pt", **kept)
    check_settings(args, ("--path", None))
    assert {name: getattr(args, name) for name in kept} == kept
    # Weights come from the checkpoint; the last is not an option of a model.
    assert args.encoder_embed_path is None and args.restore_file is None


def _crafted(folder: Path, source: Path, **settings: Any) -> Path:
    state = torch.load(source)
    for name, value in settings.items():
        setattr(state["cfg"]["model"], name, value)
    torch.save(state, folder / "crafted.pt")
    return folder / "crafted.pt"


def _load(corpus: Corpus, crafted: Path, folder: Path) -> Any:
    shutil.copy(crafted, folder / "verifier.pt")
    for side in ("src", "tgt"):
        shutil.copy(corpus.data / f"dict.{side}.txt", folder)
    return fairseq_plugins.load(folder, source_lang="src", target_lang="tgt", device="cpu")


def _generate(corpus: Corpus, verifier: Path, options: str = "--decoder greedy") -> Any:
    return run_in_process("generate", f"{corpus.data} --task spec_dec --path {verifier} --cpu {options}")


def _validate(corpus: Corpus, crafted: Path, folder: Path, options: str = "--task spec_dec") -> Any:
    more = "--valid-subset test --cpu --batch-size 9"
    argv = f"fairseq-validate {corpus.data} --path {crafted} {options} {more}".split()
    with mock.patch.object(sys, "argv", argv):
        refuse_unsafe_model_of_validation()  # which importing the plugin does
    return run_in_process("validate", " ".join(argv[1:]))


def _train(corpus: Corpus, folder: Path, options: str) -> Any:
    arch = options if "--arch" in options else f"--arch block_nat --criterion glat_loss {options}"
    return run_in_process(
        "train",
        f"{corpus.data} --task spec_dec {TINY} --optimizer adam --max-tokens 600 --max-update 1 --cpu --num-workers 0 "
        f"--save-dir {folder} --no-save --disable-validation {arch}",
    )


def _ctranslate2(corpus: Corpus, crafted: Path, folder: Path) -> Any:
    pytest.importorskip("ctranslate2")
    return ctranslate.convert(str(crafted), Namespace(data=corpus.data, source_lang="src", target_lang="tgt"), folder)


BLOCKWISE = "--arch blockwise_transformer --criterion blockwise_loss --base-path"
# What loads a crafted checkpoint, with the corpus and an empty folder.
WAYS: dict[str, Callable[[Corpus, Path, Path], Any]] = {
    "load": _load,
    "greedy": lambda corpus, crafted, _: _generate(corpus, crafted),
    "beam": lambda corpus, crafted, _: _generate(corpus, crafted, "--decoder beam"),
    "drafter": lambda corpus, crafted, _: _generate(corpus, corpus.verifier, f"--decoder gad --drafter-path {crafted}"),
    "lm": lambda corpus, crafted, _: _generate(corpus, corpus.verifier, f"--decoder fast-beam --lm-path {crafted}"),
    "validate": _validate,
    "verifier": lambda corpus, crafted, to: _train(corpus, to, f"--share-encoder --verifier-path {crafted}"),
    "encoder": lambda corpus, crafted, to: _train(corpus, to, f"--init-encoder-from {crafted}"),
    "heads": lambda corpus, crafted, to: _train(corpus, to, f"{BLOCKWISE} {crafted}"),
    "ctranslate2": _ctranslate2,
}


@pytest.mark.parametrize(
    ("arch", "way"), [*(("transformer", way) for way in WAYS), ("fconv", "load"), ("fconv", "verifier")]
)
def test_no_command_runs_a_checkpoint(arch: str, way: str, corpus: Corpus, tmp_path: Path) -> None:
    planted = {"arch": arch, "_name": arch, "adaptive_softmax_cutoff": command(tmp_path)}
    if arch == "fconv":
        planted |= {"encoder_layers": command(tmp_path), "decoder_layers": command(tmp_path)}
    crafted = _crafted(tmp_path, corpus.verifier, **planted)
    with pytest.raises(ConfigurationError, match="could be code|is not decoded here|was trained with another task"):
        WAYS[way](corpus, crafted, tmp_path)
    assert not (tmp_path / "planted").exists()


def test_removed_settings_do_not_hinder(corpus: Corpus, tmp_path: Path) -> None:
    """A command where no builder of this model looks, and a file of word vectors that no longer exists."""
    planted = {"layers": command(tmp_path), "save_dir": command(tmp_path), "encoder_embed_path": "/nowhere/vectors"}
    crafted = _crafted(tmp_path, corpus.verifier, **planted)
    own, stock = (_generate(corpus, path).stdout for path in (crafted, corpus.verifier))
    assert own == stock and not (tmp_path / "planted").exists()


@pytest.mark.parametrize("is_older", [False, True])
def test_files_of_training_are_not_read_in_validation(is_older: bool, corpus: Corpus, tmp_path: Path) -> None:
    """fairseq reads the checkpoint and builds its task itself: what that task does not remove is refused."""
    crafted = _crafted(tmp_path, corpus.verifier, decoder_embed_path="/nowhere/vectors")
    if is_older:
        state = torch.load(crafted)
        torch.save({**state, "args": state["cfg"]["model"], "cfg": None}, crafted)
        # The option replaces an older checkpoint's task, so that this removes them.
        assert " loss " in _validate(corpus, crafted, tmp_path).stdout
    else:
        with error_about("--path", "crafted.pt: its setting decoder_embed_path is '/nowhere/vectors'"):
            _validate(corpus, crafted, tmp_path)
    removed = read_with_task(str(crafted), "--path")
    assert removed["args"] is None and removed["cfg"].model.decoder_embed_path is None


@pytest.mark.parametrize(
    "task", [{"_name": "hubert_pretraining"}, {"_name": "translation", "left_pad_source": "f()"}, {}]
)
def test_other_tasks_are_not_built_in_validation(task: dict[str, Any], corpus: Corpus, tmp_path: Path) -> None:
    state = torch.load(corpus.verifier)
    torch.save({**state, "cfg": {**state["cfg"], "task": task}}, tmp_path / "crafted.pt")
    with error_about("--path", r"could be code|was trained with another task"):
        _validate(corpus, tmp_path / "crafted.pt", tmp_path)


@pytest.mark.usefixtures("registries")
def test_validation_without_options_of_the_plugin_is_fairseqs(corpus: Corpus, tmp_path: Path) -> None:
    """With --decoder, the task removes what it does not need."""
    vectors = {"decoder_embed_path": "/nowhere/vectors"}
    with pytest.raises(FileNotFoundError, match="/nowhere/vectors"):
        _validate(corpus, _crafted(tmp_path, corpus.verifier, **vectors), tmp_path, "--task translation")
    add_decoder("translation")
    assert " loss " in _validate(corpus, tmp_path / "crafted.pt", tmp_path, "--task translation --decoder beam").stdout


def test_the_file_that_fairseq_reads_is_checked(corpus: Corpus, tmp_path: Path) -> None:
    """fairseq prefers a shard beside the file."""
    _crafted(tmp_path, corpus.verifier, adaptive_softmax_cutoff=command(tmp_path)).rename(tmp_path / "model-shard0.pt")
    shutil.copy(corpus.verifier, tmp_path / "model.pt")
    with error_about("--path", "model-shard0.pt: .* could be code"):
        _validate(corpus, tmp_path / "model.pt", tmp_path)


def test_files_that_a_language_model_names_are_not_read(tmp_path: Path) -> None:
    model = write_language_model(tmp_path, Path("checkpoints/cldr.en-de/dict.de.txt"))
    state = torch.load(model)
    state["cfg"]["model"]["decoder_embed_path"] = "/nowhere/vectors"
    torch.save(state, model)
    assert read_language_model(str(model))["cfg"].model.decoder_embed_path is None
    with error_about("--lm-path", "its setting decoder_embed_path is '/nowhere/vectors'"):
        read_language_model(str(model), read_again=True)
