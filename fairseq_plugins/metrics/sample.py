"""Data of metrics: aligned hypotheses, references and sources, and scores."""

import re
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import sacremoses


@dataclass
class Score:
    """One score."""

    metric: str  # name as printed in papers
    value: float  # higher is better, except for TER and repetition
    shown: str  # as printed
    details: str  # parts of the value
    signature: str  # how it was computed


class Sentences:
    """Sentences as raw text, for sacreBLEU, and as Moses tokens, for tokenised BLEU."""

    def __init__(self, lines: Sequence[str], settings: Namespace) -> None:
        self.lines = list(lines)
        self.settings = settings

    @cached_property
    def raw(self) -> list[str]:
        """Text without tokenisation."""
        if not self.settings.tokenized:
            return self.lines
        detokenizer = sacremoses.MosesDetokenizer(lang=self.settings.lang)
        return [detokenizer.detokenize(line.split()) for line in self.lines]

    @cached_property
    def tokens(self) -> list[list[str]]:
        """Moses tokens."""
        if self.settings.tokenized:
            return [line.split() for line in self.lines]
        tokenizer = sacremoses.MosesTokenizer(lang=self.settings.lang)
        return [tokenizer.tokenize(line, escape=False) for line in self.lines]

    @property
    def tokenized_lines(self) -> list[str]:
        """Moses tokens joined by spaces; `--compound-split` splits off hyphens."""
        lines = [" ".join(tokens) for tokens in self.tokens]
        return [split_compounds(line) for line in lines] if self.settings.compound_split else lines


@dataclass
class Sample:
    """The texts to compare; `references` has one entry per reference file."""

    numbers: list[int]
    hypotheses: Sentences
    references: list[Sentences]
    sources: Sentences | None
    baseline: list[str] | None  # other hypotheses
    settings: Namespace  # the arguments of spec-dec-metrics


def split_compounds(line: str) -> str:
    """Split words at hyphens into `a ##AT##-##AT## b`, as fairseq's `scripts/compound_split_bleu.sh` does.

    English-German papers since Vaswani et al. 2017 report BLEU of such text.
    """
    return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", line)
