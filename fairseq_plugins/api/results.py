"""Results of a model: translations, the steps of a stream, and the counts of a call."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Translation:
    """One translated sentence.

    Attributes:
        text: raw text, subwords joined and detokenised.
        tokens: the subwords, without EOS.
        score: natural logarithm; the sum of `token_scores` divided by their number to the power of `lenpen`, as
            fairseq normalises it. fairseq-generate prints it divided by ln 2. NaN with `return_scores=False`.
        token_scores: log-probability (natural logarithm) of every token, EOS included; NaN as `score`.
        emitted: tokens that each iteration added, EOS included and the verifier's own among them; their number is
            that of iterations. None for fairseq's own search (`decoder="beam"`), which counts nothing, and where a task
            returns hypotheses that it has copied.
        alternatives: the next best hypotheses, the best first, as many as `num_hypotheses` asks for besides this one;
            nothing is counted of them, except of samples.
        alignment: for each of `tokens` the source subword that it attends to most, an index into those of the text
            (`Model.tokenize`), without EOS and language; None unless `alignments` is set.
    """

    text: str
    tokens: list[str]
    score: float
    token_scores: list[float]
    emitted: list[int] | None
    alternatives: list["Translation"] = field(default_factory=list)
    alignment: list[int] | None = None

    @property
    def iterations(self) -> int | None:
        """How many times it was drafted and verified; None where nothing was counted."""
        return None if self.emitted is None else len(self.emitted)


@dataclass(frozen=True)
class Step:
    """What one iteration added to a sentence.

    Attributes:
        tokens: the subwords that it emitted, without EOS: accepted ones, then (mostly) the verifier's own.
        drafted: how many tokens were drafted.
        accepted: how many of the emitted tokens, EOS included, were drafted ones.
        text: all of the sentence so far, raw text.
        finished: whether this was the last one.
    """

    tokens: list[str]
    drafted: int
    accepted: int
    text: str
    finished: bool


@dataclass
class CallStatistics:
    """What one call did.

    Attributes:
        sentences: how many were translated.
        tokens: in their outputs, samples among their alternatives and EOS included.
        iterations: drafts verified; 0 for fairseq's own search, which counts nothing.
        seconds: wall-clock time in the decoder, without subwords and detokenisation.
    """

    sentences: int = 0
    tokens: int = 0
    iterations: int = 0
    seconds: float = field(default=0.0)

    @property
    def tokens_per_iteration(self) -> float | None:
        """Tokens per iteration, the verifier's own included: 1 for greedy decoding. None where nothing was counted."""
        return self.tokens / self.iterations if self.iterations else None

    def add(self, translation: Translation) -> None:
        """Count a sentence."""
        self.sentences += 1
        for output in (translation, *(sample for sample in translation.alternatives if sample.emitted is not None)):
            self.tokens += len(output.token_scores)
            self.iterations += output.iterations or 0
