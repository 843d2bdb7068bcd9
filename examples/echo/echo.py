"""Echo: draft what followed the last token earlier in the output."""

from dataclasses import dataclass

import torch

from fairseq_plugins.decoding.method import (
    KernelMethod,
    Method,
    MethodContext,
    MethodOptions,
    MethodSpec,
    draft_and_verify,
    option,
)
from fairseq_plugins.decoding.methods import _echo
from fairseq_plugins.decoding.reference.drafters import Drafter
from fairseq_plugins.decoding.reference.drafters.copying import continuation
from fairseq_plugins.decoding.reference.state import DecodingState, Draft, no_draft
from fairseq_plugins.errors import ConfigurationError


class EchoDrafter(Drafter):
    """Drafts up to `width` tokens: those after the most recent earlier position of the last token."""

    def __init__(self, width: int) -> None:
        self.width = width

    def draft(self, state: DecodingState) -> Draft:
        # No draft may pass the length limit.
        width = min(self.width, state.max_len - state.span.shortest)
        if width <= 0:
            return no_draft(state)
        output = state.tokens[:, : state.span.longest + 1]
        column = torch.arange(output.size(1), device=output.device)
        is_earlier = (0 < column) & (column < state.lengths[:, None])
        position = torch.where(is_earlier & (output == state.last_tokens()), column, 0).amax(1)
        text = torch.nn.functional.pad(output.masked_fill(column > state.lengths[:, None], -1), (0, 1), value=-1)
        return Draft(*continuation(text, position, position > 0, width))


@dataclass(frozen=True)
class EchoOptions(MethodOptions):
    """Options of `echo`."""

    echo_width: int = option(8, "draft at most this many tokens")


def _check(options: EchoOptions) -> None:
    if options.echo_width < 1:
        raise ConfigurationError("--echo-width", options.echo_width, remedy="give at least 1 token to draft")


def _build(context: MethodContext, options: EchoOptions) -> Method:
    return draft_and_verify(context, EchoDrafter(options.echo_width))


def _build_kernels(context: MethodContext, options: EchoOptions) -> KernelMethod:
    return KernelMethod(context.kernel_weights, _echo.EchoDrafter(options.echo_width))


METHODS = [
    MethodSpec(
        name="echo",
        summary="repeat what the output said before, the output of --beam 1",
        drafts="what followed the last token before",
        accepts="exact top-1",
        paper="an example",
        options=EchoOptions,
        check=_check,
        build=_build,
        build_kernels=_build_kernels,
        accept_reason="echo",
    )
]
