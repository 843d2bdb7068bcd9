"""Draft-and-verify decoding for fairseq: registers the task, models and criterions of `--user-dir fairseq_plugins`.

In a program that imports it, it changes nothing that is the program's; in a tool of fairseq it does (`is_tool`).
"""

# The hooks first: imports take seconds, in which the user may press Ctrl-C.
from fairseq_plugins.checkpoint.tool_errors import set_hooks
from fairseq_plugins.process.output import is_tool, lower_log_level, unchanged_logging, watch_output

if is_tool():
    set_hooks()

from fairseq_plugins.help_texts import answer_help  # noqa: E402
from fairseq_plugins.version import __version__  # noqa: E402

answer_help()

from fairseq_plugins.errors import ConfigurationError, on_command_line, spell_as  # noqa: E402

if is_tool():
    spell_as(on_command_line)
    watch_output()
    lower_log_level()

from fairseq_plugins.process.deferred import deferred_imports, deferred_settings, without_garbage_collection  # noqa: E402

with without_garbage_collection(), deferred_settings(), unchanged_logging():
    from fairseq_plugins.checkpoint.safe_loading import allow_fairseq_checkpoints

    with deferred_imports():
        allow_fairseq_checkpoints()  # which imports fairseq

    # fairseq imports tasks/ and models/ of a --user-dir, but not criterions/.
    from fairseq_plugins import criterions, models, tasks
    from fairseq_plugins.api import (
        CallOptions,
        CallStatistics,
        LoadOptions,
        Memory,
        Model,
        Step,
        Translation,
        WrapOptions,
        load,
        wrap,
    )
    from fairseq_plugins.checkpoint.loading import refuse_unsafe_model_of_validation
    from fairseq_plugins.process.freed_memory import keep_freed_memory
    from fairseq_plugins.process.training import bf16_without_tpu, destroy_process_groups_at_exit, stop_on_request
    from fairseq_plugins.shared.parsing import help_of_fairseqs_tools, refuse_wrong_arguments_of_fairseqs_tools

if is_tool():
    help_of_fairseqs_tools()
    refuse_wrong_arguments_of_fairseqs_tools()
    refuse_unsafe_model_of_validation()
    bf16_without_tpu()
    keep_freed_memory()
    stop_on_request()
    destroy_process_groups_at_exit()

__all__ = [
    "CallOptions",
    "CallStatistics",
    "ConfigurationError",
    "LoadOptions",
    "Memory",
    "Model",
    "Step",
    "Translation",
    "WrapOptions",
    "__version__",
    "criterions",
    "load",
    "models",
    "tasks",
    "wrap",
]


def __dir__() -> list[str]:
    return __all__
