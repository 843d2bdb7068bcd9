"""Checks shared by methods: models, dictionaries and options must fit each other."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from fairseq_plugins.checkpoint.compact_weights import CompactWeight
from fairseq_plugins.checkpoint.mapped_weights import release_pages
from fairseq_plugins.decoding.method import MethodContext, MethodOptions, MethodSpec
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.models.support import unsupported_model


def check_task_options(cfg: Any, spec: MethodSpec) -> None:
    """Raise ConfigurationError for options of the task that the method does not support."""
    if cfg.block_size is not None and cfg.block_size < 1:
        raise ConfigurationError("--block-size", cfg.block_size, remedy="give at least 1 token per draft")
    if cfg.active_sentences < 0:
        remedy = "give a number of sentences, or 0 for all"
        raise ConfigurationError("--active-sentences", cfg.active_sentences, remedy=remedy)
    if cfg.active_sentences and spec.build is None:
        problem = "fairseq's own search decodes whole batches"
        raise ConfigurationError("--active-sentences", cfg.active_sentences, problem, "choose another {--decoder}")
    if cfg.begin_suppress_tokens is not None and spec.build is None:
        problem = "is not for {--decoder beam}, fairseq's own search"
        remedy = "use {--decoder fast-beam}"
        raise ConfigurationError("--begin-suppress-tokens", cfg.begin_suppress_tokens, problem, remedy)
    if cfg.int8 and spec.build is None:
        raise ConfigurationError("--int8", None, "fairseq's own search runs in fp32", "choose another {--decoder}")
    if cfg.int8 and cfg.bf16 is True:
        raise ConfigurationError("--int8", None, "rounds fp32 weights", "leave out {--bf16}")


def check_verifiers(spec: MethodSpec, models: Sequence[nn.Module]) -> None:
    """Raise ConfigurationError for a verifier that our engines cannot run, or whose scores they do not know."""
    for model in models if spec.runs_verifier else ():
        reason = unsupported_model(model)
        if reason is not None:
            problem = f"this {type(model).__name__} cannot be decoded with {{--decoder {spec.name}}}: {reason}"
            raise ConfigurationError("--path", None, problem, "use {--decoder beam}")


def check_fit(spec: MethodSpec, options: MethodOptions, context: MethodContext) -> None:
    """Raise ConfigurationError if verifiers, drafter, dictionaries and options do not fit each other."""
    check_verifiers(spec, context.models)
    if context.engine.int8:
        _check_int8(context.models)
    option = spec.copies_source(options)
    if option is not None and context.source is None:
        problem = "copies source tokens, and this task's source has none"
        raise ConfigurationError(*option, problem, "use another decoder")
    if option is not None and context.source != context.target:
        problem = "copies source tokens into the output, but the dictionaries of source and target differ"
        remedy = "binarise with fairseq-preprocess --joined-dictionary, or use another decoder"
        raise ConfigurationError(*option, problem, remedy)
    spec.check_fit(context, options)


def check_finite(models: Sequence[nn.Module]) -> None:
    """Raise ConfigurationError for NaN or infinite weights: output would be garbage with finite scores."""
    for model in models:
        for name, weight in model.named_parameters():
            numbers = weight.floats if isinstance(weight, CompactWeight) else weight.detach()
            is_finite = numbers.numel() == 0 or bool(torch.stack(torch.aminmax(numbers)).isfinite().all())
            release_pages([weight])
            if not is_finite:
                problem = f"its weight {name} has values that are NaN or infinite"
                remedy = "give an earlier checkpoint, or train with a lower {--lr} or {--clip-norm}"
                raise ConfigurationError("--path", None, problem, remedy)


def _check_int8(models: Sequence[nn.Module]) -> None:
    for parameter in (next(model.parameters()) for model in models):
        if parameter.device.type != "cpu":
            problem = f"is for the CPU, and this model is on {parameter.device.type}"
            raise ConfigurationError("--int8", None, problem, "add {--cpu}, or use {--fp16} there")
        if parameter.dtype != torch.float32:
            name = str(parameter.dtype).removeprefix("torch.")
            remedy = "leave out {--fp16}"
            raise ConfigurationError("--int8", None, f"rounds fp32 weights, and this model is in {name}", remedy)


def check_thresholds(beta: int, tau: float) -> None:
    """Raise ConfigurationError for thresholds that no token can meet."""
    if beta < 1:
        raise ConfigurationError("--top-beta", beta, remedy="give at least 1, which accepts the verifier's best only")
    if not tau >= 0:
        raise ConfigurationError("--tau", tau, "a gap of log-probabilities", "give 0 or more")
