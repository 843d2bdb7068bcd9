"""Run checks in a process of their own."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

from fairseq_plugins.benchmarks.gpu_check.environment import Environment
from fairseq_plugins.benchmarks.gpu_check.report import FAILED, PASSED, Outcome, failed_by

Check = Callable[[Environment], Outcome]


class CheckProcess:
    """A process that runs checks one after the other; another one follows after a check that fails.

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
            outcome = self.pool.submit(check, env).result(seconds)
        except TimeoutError:
            outcome = Outcome(FAILED, f"not finished in {seconds:.0f} s")
        except Exception as error:
            outcome = failed_by(error)
        if outcome.state != PASSED:
            self.stop()
        return outcome

    def stop(self) -> None:
        """End the process."""
        if self.pool is not None:
            for process in list(self.pool._processes.values()):
                process.kill()
            self.pool.shutdown(wait=False)
        self.pool = None
