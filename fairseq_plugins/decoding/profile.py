"""Where the time of decoding goes: the profiling table of SpecDec (Appendix D, Table 18)."""

import time
from collections.abc import Callable
from typing import Any

import torch
from tabulate import tabulate

from fairseq_plugins.decoding.generator import DraftVerifyGenerator
from fairseq_plugins.decoding.method import Method
from fairseq_plugins.decoding.partial_file import broke_off
from fairseq_plugins.output import say

# In the order of the table. What runs inside of another part counts there only where it is itself.
PARTS = ("verifier's encoder", "drafter's encoder", "drafter", "verifier", "acceptance", "other")


class Profile:
    """Measures a generator part by part.

    It replaces the bound methods of one generator by timed ones, so that decoding without a profile runs no code of it.
    On a GPU every part waits for the device at its beginning and end, which makes the whole slower than it is.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.sentences = 0
        self._running: list[str] = []
        self._since = 0.0

    def attach(self, generator: DraftVerifyGenerator) -> None:
        """Measure this generator from now on; what it has made so far (weights read, graphs captured) is kept."""
        build, generate = generator.build_method, generator._generate

        def counted(sample: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            self.sentences += sample["net_input"]["src_tokens"].size(0)
            return generate(sample, *args, **kwargs)

        if generator.method is not None:
            self._watch(generator.method)
        generator.build_method = lambda: self._watch(build())
        generator._generate = self._timed("other", counted)

    def _watch(self, method: Method) -> Method:
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
        method.in_one_call = False
        return method

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
        """Put the time since the last change on the account of the part that ran."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        now = time.perf_counter()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now

    def rows(self) -> list[tuple[str, float, float]]:
        """Part, milliseconds per sentence, percent of the whole; the whole comes last."""
        total = sum(self.seconds.values())
        milliseconds, percent = 1000 / max(self.sentences, 1), 100 / max(total, 1e-12)
        accounts = [*self.seconds.items(), ("total", total)]
        return [(part, milliseconds * seconds, percent * seconds) for part, seconds in accounts]

    def table(self) -> str:
        """The rows as a Markdown table."""
        rows = [[part, f"{milliseconds:.2f}", f"{percent:.1f}"] for part, milliseconds, percent in self.rows()]
        header = ["part", "ms per sentence", "%"]
        return tabulate(rows, header, tablefmt="github", colalign=("left", "right", "right"), disable_numparse=True)

    def close(self) -> None:
        """Print the table, unless the run broke off."""
        if not broke_off() and self.sentences > 0:
            say(self.table())
