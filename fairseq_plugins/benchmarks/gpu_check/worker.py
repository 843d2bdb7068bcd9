"""Run checks in a process of their own."""

import multiprocessing
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

from fairseq_plugins.benchmarks.gpu_check.environment import Environment
from fairseq_plugins.benchmarks.gpu_check.report import FAILED, Outcome

Check = Callable[[Environment], Outcome]


class CheckProcess:
    """A process that runs checks one after the other; another one follows after an error.

    An error of CUDA makes all later calls in its process fail, and a crash or endless loop would end all checks.
    """

    def __init__(self) -> None:
        self.pool: ProcessPoolExecutor | None = None

    def run(self, check: Check, env: Environment, seconds: float) -> Outcome:
        """Return the outcome of a check, `FAILED` if it raises, kills its process or takes longer."""
        if self.pool is None:
            # A process that uses a GPU cannot fork.
            self.pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn" if env.is_gpu else "fork"))
        try:
            return self.pool.submit(check, env).result(seconds)
        except TimeoutError:
            reason, details = f"not finished in {seconds:.0f} s", ""
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            details = "".join(traceback.format_exception(error.__cause__ or error))
        self.stop()
        return Outcome(FAILED, reason, details=details)

    def stop(self) -> None:
        """End the process."""
        if self.pool is not None:
            for process in list(self.pool._processes.values()):
                process.kill()
            self.pool.shutdown(wait=False)
        self.pool = None
