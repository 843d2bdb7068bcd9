"""Measure the time of each part of decoding, for the profiling table of SpecDec (Appendix D, Table 18)."""

import time
from collections.abc import Callable
from typing import Any

import torch

from fairseq_plugins.decoding.generator import DraftVerifyGenerator
from fairseq_plugins.decoding.native.backend import NativeBackend
from fairseq_plugins.decoding.reference.backend import TorchBackend
from fairseq_plugins.process.output import say
from fairseq_plugins.shared.display import table
from fairseq_plugins.shared.partial_file import was_interrupted

# Parts in the order of the table. The time of a nested part is not counted in the outer one.
PARTS = ("verifier's encoder", "drafter's encoder", "drafter", "verifier", "acceptance", "other")
# The part of each counter of the kernels.
_NATIVE_PARTS = {
    "encode": "verifier's encoder",
    "prepare": "drafter's encoder",
    "draft": "drafter",
    "observe": "drafter",
    "verify": "verifier",
    "accept": "acceptance",
}


class Profile:
    """Measure the parts of a generator, on the backend that it uses anyway.

    The compiled kernels count their own time. Parts of the loop in PyTorch are wrapped by timers, which synchronise
    with a GPU before and after every part and slow the run down.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.sentences = 0
        self._running: list[str] = []
        self._last_change = 0.0

    def attach(self, generator: DraftVerifyGenerator) -> None:
        """Start measuring a generator, whose models stay as they are."""
        generate = generator._generate

        def timed_generate(sample: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            backend = generator.backend
            if isinstance(backend, TorchBackend) and self.sentences == 0:
                self._wrap(backend)
            before = backend.generator.seconds() if isinstance(backend, NativeBackend) else {}
            self.sentences += sample["net_input"]["src_tokens"].size(0)
            hypotheses = self._timed("other", generate)(sample, *args, **kwargs)
            if isinstance(backend, NativeBackend):
                self._add(before, backend.generator.seconds())
            return hypotheses

        generator._generate = timed_generate  # type: ignore[method-assign]

    def _add(self, before: dict[str, float], after: dict[str, float]) -> None:
        """Move the time of the kernels' counters from "other" to its parts, scaled from seconds of all threads."""
        spent = {name: after[name] - before[name] for name in after}
        scale = min(1.0, self.seconds["other"] / max(sum(spent.values()), 1e-12))
        for name, seconds in spent.items():
            self.seconds[_NATIVE_PARTS[name]] += scale * seconds
            self.seconds["other"] -= scale * seconds

    def _wrap(self, backend: TorchBackend) -> None:
        method = backend.method
        for owner, name, part in (
            (method.verifier, "start", "verifier's encoder"),
            (method.verifier, "append_rows", "verifier's encoder"),
            (method.drafter, "start", "drafter's encoder"),
            (method.drafter, "append_rows", "drafter's encoder"),
            (method.drafter, "draft", "drafter"),
            (method.drafter, "observe", "drafter"),
            (method.verifier, "verify", "verifier"),
            (method.search, "advance", "acceptance"),
            (method.verifier, "select_rows", "other"),
            (method.drafter, "select_rows", "other"),
        ):
            setattr(owner, name, self._timed(part, getattr(owner, name)))

    def _timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._charge_running_part()
            self._running.append(part)
            try:
                return call(*args, **kwargs)
            finally:
                self._charge_running_part()
                self._running.pop()

        return timed

    def _charge_running_part(self) -> None:
        """Add the time since the last change to the part that is running."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        now = time.perf_counter()
        if self._running:
            self.seconds[self._running[-1]] += now - self._last_change
        self._last_change = now

    def rows(self) -> list[tuple[str, float, float]]:
        """Return (part, milliseconds per sentence, percent of the total); the total comes last."""
        total = sum(self.seconds.values())
        milliseconds, percent = 1000 / max(self.sentences, 1), 100 / max(total, 1e-12)
        accounts = [*self.seconds.items(), ("total", total)]
        return [(part, milliseconds * seconds, percent * seconds) for part, seconds in accounts]

    def table(self) -> str:
        """Return the rows as a Markdown table."""
        rows = [[part, f"{milliseconds:.3f}", f"{percent:.1f}"] for part, milliseconds, percent in self.rows()]
        return table(rows, ["part", "ms per sentence", "%"])

    def close(self) -> None:
        """Print the table, unless the run was interrupted."""
        if not was_interrupted() and self.sentences > 0:
            say(self.table())
