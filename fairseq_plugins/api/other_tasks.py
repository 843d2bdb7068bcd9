"""The configuration of `load` with another task than spec_dec: what a command line of fairseq-generate makes of it."""

from collections.abc import Mapping
from typing import Any, NoReturn

from fairseq.tasks import TASK_REGISTRY
from omegaconf import DictConfig, OmegaConf

from fairseq_plugins.api.files import ModelFiles
from fairseq_plugins.errors import ConfigurationError, flag, unknown_value
from fairseq_plugins.shared.cli import NO_SUCH_OPTION, advised
from fairseq_plugins.shared.parsing import as_config, generation_parser, parse_arguments
from fairseq_plugins.tasks.beside import add_decoder


def task_configuration(
    task: str, files: ModelFiles, decoder: str, precision: str, options: Mapping[str, Any]
) -> DictConfig:
    """Return fairseq's whole configuration for one of its tasks.

    `options`, of the task, of decoding and of generation, are named as on the command line with underscores; True for
    those without a value. Raises ConfigurationError for an unknown task or option.
    """
    if task not in TASK_REGISTRY:
        raise unknown_value("--task", task, sorted(TASK_REGISTRY))
    add_decoder(task)
    named = {
        "task": task,
        "path": files.verifier,
        "decoder": decoder,
        "drafter_path": files.drafter,
        "source_lang": files.languages[0] or None,
        "target_lang": files.languages[1] or None,
        "fp16": precision == "fp16",
        "bf16": precision == "bf16",
        **options,
    }
    arguments = [files.data]
    for name, value in named.items():
        if str(value).lower() == "true":
            arguments.append(flag(name))
        elif value is not None and str(value).lower() != "false":
            arguments += [flag(name), str(value)]
    parser = generation_parser("load")

    def refuse(message: str) -> NoReturn:
        raise advised(message, parser)

    parser.error = refuse  # type: ignore[method-assign]
    try:
        cfg = as_config(parse_arguments(parser, arguments))
    except ConfigurationError as error:
        if error.problem != NO_SUCH_OPTION:
            raise
        name, remedy = str(error.value)[2:].replace("-", "_"), error.remedy or "leave it out"
        raise ConfigurationError(name, None, f"no option of the task {task} or of decoding", remedy) from None
    OmegaConf.set_struct(cfg, False)
    return cfg
