"""`--auto-block-size`: how many tokens to draft, from what an iteration costs and how much of a draft is accepted."""

import time

# What earlier iterations count for after each new one.
_MEMORY = 0.98
# Evidence, in drafted tokens, that the acceptance rate so far counts for when a new batch begins.
_PRIOR = 8.0
_FIRST_RATE = 0.6


class BlockSizeChooser:
    """Chooses the block size that promises most tokens per second.

    If every drafted token is accepted with probability p given that those before it were, a draft of k tokens gains
    1 + p + ... + p^k tokens (with the verifier's own); an iteration takes a + b k seconds. p is the running rate of the
    batch, a and b are fitted to the running times. With exact acceptance the output is the same at every block size.

    Args:
        most: largest block size, that of the drafter's training or of `--block-size`.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.rate = _FIRST_RATE
        self.tried = self.stood = 0.0
        # Running sums of 1, k, k^2, seconds, k * seconds.
        self.sums = [0.0] * 5
        self.iterations = 0
        self.began: tuple[float, int] | None = None

    def start(self) -> None:
        """Begin a batch: its own acceptance rate starts from that of all before."""
        self.tried, self.stood = _PRIOR, _PRIOR * self.rate
        self.began = None

    def choose(self) -> int:
        """The block size of the next draft. The time until it is called again is the cost of the iteration."""
        now = time.perf_counter()
        if self.began is not None:
            self._count_time(now - self.began[0], self.began[1])
        self.iterations += 1
        size = self._best()
        self.began = (now, size)
        return size

    def observe(self, drafted: int, emitted: list[int]) -> None:
        """Count what was accepted.

        Args:
            drafted: width of the last draft.
            emitted: tokens of each sentence, the verifier's own included.
        """
        if drafted == 0:
            return
        for count in emitted:
            self.stood += count - 1
            # After the first rejected token nothing was tried.
            self.tried += min(count, drafted)
        self.rate = self.stood / self.tried

    def tokens_per_second(self, size: int) -> float:
        """Expected tokens per second and sentence at a block size; per relative cost before times are known."""
        tokens = sum(self.rate**position for position in range(size + 1))
        fixed, each = self._cost()
        return tokens / (fixed + each * size)

    def _best(self) -> int:
        # Two sizes in turn, until there is a slope; and again now and then, since the machine may change.
        if self.iterations <= 8 or self.iterations % 100 < 2:
            return self.most if self.iterations % 2 else max(1, self.most // 3)
        return max(range(1, self.most + 1), key=self.tokens_per_second)

    def _count_time(self, seconds: float, size: int) -> None:
        new = (1.0, size, size * size, seconds, size * seconds)
        self.sums = [_MEMORY * old + value for old, value in zip(self.sums, new, strict=True)]

    def _cost(self) -> tuple[float, float]:
        """Seconds of an iteration and of every drafted token in it, by least squares; a guess before there is data."""
        count, sizes, squares, seconds, products = self.sums
        spread = count * squares - sizes * sizes
        if spread <= 1e-6 * max(1.0, squares):
            return 1.0, 0.1
        each = max((count * products - sizes * seconds) / spread, 0.0)
        fixed = (seconds - each * sizes) / count
        return (fixed, each) if fixed > 0 else (seconds / count, 0.0)
