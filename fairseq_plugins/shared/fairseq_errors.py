"""Errors of fairseq about options, as lines that name the option: fairseq's own are tracebacks that do not."""

import re
import traceback
from collections.abc import Mapping
from json import JSONDecodeError
from typing import Any

from fairseq_plugins.errors import ConfigurationError, flag, one_line

_REFINEMENT = "is for models that refine their outputs", "leave it out"
_NOT_GIVEN = (None, False, -1, "{}")  # fairseq's defaults of the options below
_NO_UNK = "fairseq 0.12 fails where an output has <unk>, and changes nothing else; leave it out"

# A function in the traceback, what the message has -> the option, and what to say of it.
_KNOWN = (
    ("_main", "^'steps'$", "--print-step", *_REFINEMENT),
    ("_main", "^'history'$", "--retain-iter-history", *_REFINEMENT),
    ("replace_unk", "", "--replace-unk", _NO_UNK, ""),
    ("main", "Must specify batch size", None, "batches have no size", "add {--max-tokens N} or {--batch-size N}"),
    ("load_align_dict", "No such file", "--replace-unk", f"no such file; {_NO_UNK}", ""),
    ("main", "too many values to unpack", "--print-alignment", "is not for fairseq-interactive", "give hard"),
    ("_main", "expected str instance, int found", "--print-alignment", "is not for {--score-reference}", "give hard"),
    ("generate", "^'target'$", "--score-reference", "the data has no references", "give fairseq-generate a set "
     "with both languages"),
    ("init_constraints", "NoneType", "--constraints", "fairseq-generate has none", "use fairseq-interactive"),
    ("build_dataset_for_inference", "Constrained decoding .* not supported", "--constraints", "is not for this "
     "{--task}", "leave it out"),
    ("add_sequence", "^$", "--constraints", "a line has an empty one", "give a phrase after each tab"),
    ("build_generator", "mutually exclusive", None, "{--sampling}, {--match-source-len}, {--diverse-beam-groups} and "
     "{--diversity-rate} exclude each other", "give one of them"),
    ("_generate", "min_len cannot be larger", "--min-len", "longer than the longest output allowed", "lower it or "
     "raise {--max-len-b}"),
    ("_infer_single_node_init", "world size is", "--distributed-world-size", "fairseq starts one process for each GPU "
     "here", "start them with torchrun --nproc-per-node N --no-python fairseq-train, on a CPU with {--cpu} "
     "{--distributed-backend gloo} {--ddp-backend legacy_ddp}"),
    ("build_fp32_params", "compiled with CUDA|NVIDIA driver|No CUDA GPUs", "--fp16", "trains on a GPU",
     "add {--cpu-bf16} or {--bf16} instead"),
    ("step_update", "division by zero", "--lr-scheduler", "has no updates after the warm-up",
     "lower {--warmup-updates}"),
    ("literal_eval", "", "--model-overrides", "is no dictionary of Python", "give one such as {'dropout': 0.1}"),
    ("post_process", "Unknown post_process", "--post-process", "is none that fairseq knows", "give subword_nmt or "
     "sentencepiece"),
    ("step", "selected index k out of range", "--sampling-topk", "more than the vocabulary has", "lower it"),
    ("convert_namespace_to_omegaconf", r"tokenizer\.(source|target)_lang=null", "--tokenizer", "needs the languages",
     "add {--source-lang} and {--target-lang}"),
    ("convert_namespace_to_omegaconf", "Could not find 'bpe/", "--bpe", "fairseq 0.12 cannot set it up",
     "choose another one"),
    ("convert_namespace_to_omegaconf", "^Interpolation key 'criterion", "--task", "reads options of its criterion",
     "give a task that translates"),
    ("_readline", "NoneType.*readline", "--input", "is closed", "give a file of text"),
)  # fmt: skip


def wrong_option(error: BaseException, given: Mapping[str, Any]) -> ConfigurationError | None:
    """Return what is wrong with an option of a tool that was given these options, by name; None if unknown."""
    reason = one_line(error, 500)
    missing = re.search(r"Missing mandatory value: (?:\w+\.)*(\w+)", reason)
    if missing is not None:
        return ConfigurationError(flag(missing[1]), None, "is missing", "give the file")
    if isinstance(error, ImportError) and "install" in reason:  # for --scoring
        return ConfigurationError(None, None, reason)
    if type(error).__name__ in ("URLError", "ConnectionError"):
        return ConfigurationError(None, None, f"a download failed ({reason[:200]})", "run it once with a connection")
    if isinstance(error, JSONDecodeError):
        for name in (name for name, value in given.items() if value == error.doc):  # such as --eval-bleu-args
            return ConfigurationError(flag(name), error.doc, "is no JSON", "give one such as '{\"beam\": 4}'")
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    names = [frame.f_code.co_name for frame in frames]
    if "_override_attr" in names and "literal_eval" in names:  # of an option of fairseq's settings
        of = dict(zip(names, frames, strict=True))["_override_attr"].f_locals
        return ConfigurationError(flag(of["k"]), of["val"], "is no value of Python", "give one such as True or [1, 2]")
    # Every error passes through the main functions.
    functions = {*names} - ({"main", "_main"} - {*names[-2:]})
    for function, pattern, option, problem, remedy in _KNOWN:
        if function in functions and re.search(pattern, reason):
            value = None if option is None else given.get(option[2:].replace("-", "_"))
            if option is None or value not in _NOT_GIVEN:
                return ConfigurationError(option, None if value is True else value, problem, remedy)
    if isinstance(error, OSError):
        # The second is fairseq's own, of codes of subwords.
        unknown = re.fullmatch("file (.*) not found", reason)
        file = error.filename or (unknown and unknown[1])
        for name, value in given.items():
            if isinstance(file, str) and value == file:
                return ConfigurationError(flag(name), value, error.strerror or "no such file", "give another one")
    return None
