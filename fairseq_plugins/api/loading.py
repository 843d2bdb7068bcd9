"""`load`: from files and options to a model, without a command line."""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack

import torch
from fairseq.dataclass.configs import FairseqConfig
from omegaconf import DictConfig, OmegaConf

from fairseq_plugins.api.files import ModelFiles, find_files
from fairseq_plugins.api.model import Model
from fairseq_plugins.api.options import (
    LOAD,
    LoadArguments,
    LoadOptions,
    SearchOptions,
    check_arguments,
    check_names,
    names,
    set_option,
)
from fairseq_plugins.api.other_tasks import task_configuration
from fairseq_plugins.api.text_tools import check_text_tools, set_text_tools
from fairseq_plugins.checkpoint.session import TaskSession
from fairseq_plugins.decoding import methods
from fairseq_plugins.errors import ConfigurationError, unknown_value
from fairseq_plugins.process.output import quiet_fairseq
from fairseq_plugins.shared.parsing import check_paths
from fairseq_plugins.tasks.options import SpecDecConfig

logger = logging.getLogger("fairseq_plugins")

Precision = Literal["fp32", "fp16", "bf16"]


def load(
    folder: str | Path | None = None,
    *,
    verifier: str | Path | None = None,
    drafter: str | Path | None = None,
    data: str | Path | None = None,
    decoder: str | None = None,
    task: str = "spec_dec",
    task_options: Mapping[str, Any] | None = None,
    source_lang: str | None = None,
    target_lang: str | None = None,
    subwords: str | Path | None = None,
    tokenizer: Literal["moses", "none"] | None = None,
    device: str | None = None,
    precision: Precision = "fp32",
    threads: int | None = None,
    **options: Unpack[LoadOptions],
) -> Model:
    """Load a model for translation.

        model = load("checkpoints/multi30k.en-de")
        model = load(verifier="checkpoint_best.pt", drafter="drafter.pt", data="data-bin/mytext", decoder="gad")

    Args:
        folder: a folder as the recipes write it: verifier.pt, drafter.pt, dictionaries, subwords.
        verifier: checkpoint of an autoregressive fairseq model; several for an ensemble, with colons between them.
        drafter: checkpoint of the drafter trained for it.
        data: folder of the dictionaries, `dict.LANGUAGE.txt`, as fairseq-preprocess writes it.
        decoder: name of a decoding method, as for --decoder; default: gad with a drafter, greedy without.
        task: of fairseq, for a model whose own task gives it language tokens or other limits, such as
            "translation_multi_simple_epoch" for M2M-100.
        task_options: the options of that task, named as on the command line with underscores; True for those without
            a value.
        source_lang, target_lang: where the folder's name or files do not say them; of a multilingual model the
            languages to translate from and into.
        subwords: sentencepiece model (`*.model`), or codes of subword-nmt or fastBPE; default: `subwords.model` or
            `bpe.codes` beside the dictionaries, and `subwords.target.model` for target text; without any, text is read
            as subwords with spaces between them.
        tokenizer: what text is cut with before subwords, "moses" or "none"; default: moses with codes of subword-nmt
            or fastBPE if the source dictionary has its marks (`&apos;`, `@-@`), else none.
        device: "cpu", "cuda" or "cuda:N"; default: the current GPU where there is one.
        precision: of the weights. Lossless decoders give fairseq's own tokens in fp32; in half precision rounding
            may let two tokens that are as good as equally likely change places.
        threads: of a CPU that the model's calls use; default: torch's number.
        options: see `LoadOptions`: those of the method and of fairseq's generation, named as on the command line with
            underscores: block_size=5, preset="high-quality", max_len_b=100, lenpen=0.6 ...

    Returns:
        the model, loaded and on its device.

    Raises:
        ConfigurationError: in one line, for files that are missing or do not fit, and for unknown options.
    """
    given: Any = {name: value for name, value in locals().items() if name != "options"}
    return _load(None, given, dict(options))


def with_decoder(model: Model, decoder: str, **options: Unpack[LoadOptions]) -> Model:
    """Return a loaded model with another decoder and `options` of it; both have the same weights in memory.

    Other options are those of the model. Raises ConfigurationError as `load`.
    """
    assert isinstance(model._reload, partial)
    of_methods = {declared.name for name in methods.DECODERS for declared in fields(methods.find(name).options)}
    kept: dict[str, Any] = dict(model._reload.keywords)
    given: Any = {**{name: kept.pop(name) for name in names(LoadArguments)}, "decoder": decoder}
    own = {name: value for name, value in kept.items() if name not in of_methods}
    return _load(model, given, {**own, **options})


def _load(shares: Model | None, given: LoadArguments, options: dict[str, Any]) -> Model:
    """Load as `load` does, with the weights of another model in place of the verifier's files if it is given."""
    check_arguments({**given, **options}, LoadArguments)
    task, decoder, precision = given["task"], given["decoder"], given["precision"]
    device, tokenizer, task_options = given["device"], given["tokenizer"], given["task_options"]
    of_task = "" if task == "spec_dec" else f"give options of the task {task} as task_options=; else "
    check_names(options, LOAD, _fitting(decoder), of_task)
    if decoder is not None and decoder not in methods.DECODERS:
        raise unknown_value("--decoder", decoder, methods.DECODERS)
    if precision not in ("fp32", "fp16", "bf16"):
        raise unknown_value("--precision", precision, ("fp32", "fp16", "bf16"))
    has_heads = decoder is not None and methods.find(decoder).name == "blockwise"
    is_own = task == "spec_dec"
    languages = (given["source_lang"], given["target_lang"])
    named = (given["folder"], given["verifier"], given["drafter"], given["data"])
    files = find_files(*named, languages, given["subwords"], has_heads, is_own)
    name = methods.find(decoder or ("gad" if files.drafter is not None else "greedy")).name
    values = {**files.options, **options}
    on_gpu = torch.cuda.is_available() and device != "cpu"
    if "int8" not in options and (on_gpu or precision != "fp32" or name == "beam"):
        values.pop("int8", None)  # of a folder in int8, whose weights everything else reads in fp32
    if is_own and task_options:
        raise ConfigurationError("--task-options", dict(task_options), "are for another task", "give {--task}, too")
    if is_own:
        cfg = configuration(files, name, precision, values)
    else:
        cfg = task_configuration(task, files, name, precision, {**values, **(task_options or {})})
    # A folder's drafter is there for whoever needs it; one that was named has to be of use.
    if given["drafter"] is None and not methods.find(name).needs_drafter(methods.chosen(cfg.task)[1]):
        cfg.task.drafter_path = None
    index = _device(cfg, device)
    check_paths(cfg)
    set_text_tools(cfg, files, tokenizer)
    with quiet_fairseq(), torch.random.fork_rng(devices=[]):  # fairseq initialises weights before it loads them
        session = TaskSession(cfg, index)
        session.target_subwords = files.target_subwords
        if shares is not None:
            session.models = shares._session.models
        check_text_tools(session, files.subwords)
        if session.task.source_dictionary is not None:
            _check_subwords(files, session.task.source_dictionary.symbols, tokenizer is not None)
        reload = partial(load, **_absolute({**given, **options}))
        model = Model(session, files.languages, given["threads"], reload, shares)
    return model


def _check_subwords(files: ModelFiles, symbols: Sequence[str], is_cut: bool) -> None:
    """Compare a dictionary with the file that cuts text: warn without a file, unless text is said to be cut already.

    Raises ConfigurationError if the dictionary has the subwords of the other kind only.
    """
    marked = {
        "subword-nmt or fastBPE (@@)": sum(symbol.endswith("@@") for symbol in symbols),
        "sentencepiece (\u2581)": sum(symbol.startswith("\u2581") for symbol in symbols),
    }
    kind = max(marked, key=marked.__getitem__)
    if marked[kind] <= len(symbols) / 20:
        return
    if files.subwords is None:
        if not is_cut:
            logger.warning(
                f"{files.data}: the dictionaries have subwords of {kind}, and no file that cuts text into them is "
                "given: text is read as subwords with spaces between, and written so; give the codes or the model as "
                "subwords"
            )
        return
    given = Path(files.subwords)
    if not given.is_dir() and (given.suffix == ".model") != ("sentencepiece" in kind):
        problem = f"cuts no subwords of {kind}, which the dictionaries have"
        remedy = "give the file that cut the model's training text"
        raise ConfigurationError("--subwords", given, problem, remedy)


def configuration(files: ModelFiles, decoder: str, precision: str, options: Mapping[str, Any]) -> DictConfig:
    """Return fairseq's whole configuration, as its command line would make it.

    Raises ConfigurationError for an unknown option, or a value of the wrong kind.
    """
    cfg: DictConfig = OmegaConf.structured(FairseqConfig())
    cfg.task = OmegaConf.structured(SpecDecConfig())
    OmegaConf.set_struct(cfg, False)
    cfg.task._name = "spec_dec"
    for name, value in options.items():
        set_option(cfg.task if name in cfg.task else cfg.generation, name, value)
    cfg.task.decoding_method = decoder
    cfg.task.drafter_path = files.drafter
    cfg.task.data, cfg.task.source_lang, cfg.task.target_lang = files.data, files.source_lang, files.target_lang
    cfg.common_eval.path = files.verifier
    cfg.common.fp16, cfg.common.bf16 = precision == "fp16", precision == "bf16"
    return cfg


def _fitting(decoder: str | None) -> set[str]:
    """Return the names of options that fit a decoder: its own, and those of every call."""
    own = fields(methods.find(str(decoder)).options) if decoder in methods.DECODERS else ()
    return {declared.name for declared in own} | names(SearchOptions)


def _absolute(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of `load` that mean the same in every working directory."""
    paths = ("folder", "verifier", "drafter", "data", "subwords")
    return {
        name: ":".join(map(os.path.abspath, str(value).split(":"))) if name in paths and value is not None else value
        for name, value in arguments.items()
    }


def _device(cfg: DictConfig, device: str | None) -> int | None:
    """Note in the configuration whether a GPU is used; returns its index, None for the current one."""
    if device is None:
        return None
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise ConfigurationError("--device", device, remedy="choose cpu, cuda or cuda:N") from error
    if found.type == "cpu":
        cfg.common.cpu = True
    elif found.type != "cuda" or (found.index or 0) >= torch.cuda.device_count():
        raise ConfigurationError("--device", device, f"there are {torch.cuda.device_count()} GPUs", "use cpu")
    index: int | None = found.index
    return index
