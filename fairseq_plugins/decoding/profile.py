"""Where the time of decoding goes: the profiling table of SpecDec (Appendix D, Table 18)."""

import time
from collections.abc import Callable
from typing import Any

import torch
from tabulate import tabulate

from fairseq_plugins.decoding.backends import Backend
from fairseq_plugins.decoding.generator import DraftVerifyGenerator
from fairseq_plugins.decoding.native_backend import NativeBackend
from fairseq_plugins.decoding.partial_file import broke_off
from fairseq_plugins.decoding.torch_backend import TorchBackend
from fairseq_plugins.output import say

# In the order of the table. What runs inside of another part counts there only where it is itself.
PARTS = ("verifier's encoder", "drafter's encoder", "drafter", "verifier", "acceptance", "other")
# What the counters of the kernels stand for.
_NATIVE_PARTS = {
    "encode": "verifier's encoder",
    "prepare": "drafter's encoder",
    "draft": "drafter",
    "observe": "drafter",
    "verify": "verifier",
    "accept": "acceptance",
}


class Profile:
    """Measures a generator part by part, on the backend that it has.

    The compiled kernels have their own counters. The methods of the loop in PyTorch are replaced by timed ones; on a
    GPU every part waits for the device at its beginning and end, which makes the whole slower than it is.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.sentences = 0
        self._running: list[str] = []
        self._since = 0.0

    def attach(self, generator: DraftVerifyGenerator) -> None:
        """Measure this generator from now on; what it has made so far (weights read, graphs captured) is kept."""
        generate = generator._generate
        watched: list[Backend] = []

        def counted(sample: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            backend = generator.backend
            if isinstance(backend, TorchBackend) and backend not in watched:
                self._watch(backend)
                watched.append(backend)
            before = backend.seconds() if isinstance(backend, NativeBackend) else {}
            self.sentences += sample["net_input"]["src_tokens"].size(0)
            hypotheses = self._timed("other", generate)(sample, *args, **kwargs)
            if isinstance(backend, NativeBackend):
                self._add(before, backend.seconds())
            return hypotheses

        generator._generate = counted  # type: ignore[method-assign]

    def _add(self, before: dict[str, float], after: dict[str, float]) -> None:
        """Take what the kernels counted out of what else a batch took; they count the seconds of all threads."""
        counted = {name: after[name] - before[name] for name in after}
        share = min(1.0, self.seconds["other"] / max(sum(counted.values()), 1e-12))
        for name, seconds in counted.items():
            self.seconds[_NATIVE_PARTS[name]] += share * seconds
            self.seconds["other"] -= share * seconds

    def _watch(self, backend: TorchBackend) -> None:
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
            self._book()
            self._running.append(part)
            try:
                return call(*args, **kwargs)
            finally:
                self._book()
                self._running.pop()

        return timed

    def _book(self) -> None:
        """Add the time since the last change to the part that ran."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        now = time.perf_counter()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now

    def rows(self) -> list[tuple[str, float, float]]:
        """Return part, milliseconds per sentence and percent of the whole; the whole comes last."""
        total = sum(self.seconds.values())
        milliseconds, percent = 1000 / max(self.sentences, 1), 100 / max(total, 1e-12)
        accounts = [*self.seconds.items(), ("total", total)]
        return [(part, milliseconds * seconds, percent * seconds) for part, seconds in accounts]

    def table(self) -> str:
        """Return the rows as a Markdown table."""
        rows = [[part, f"{milliseconds:.3f}", f"{percent:.1f}"] for part, milliseconds, percent in self.rows()]
        header = ["part", "ms per sentence", "%"]
        aligned = ("left", "right", "right")
        return str(tabulate(rows, header, tablefmt="github", colalign=aligned, disable_numparse=True))

    def close(self) -> None:
        """Print the table, unless the run broke off."""
        if not broke_off() and self.sentences > 0:
            say(self.table())
