"""Translate lines of text, and format the output of each."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fairseq_plugins.api import CallOptions, Model, Translation
from fairseq_plugins.api.results import CallStatistics
from fairseq_plugins.data.sentences import join_text, split_text
from fairseq_plugins.process.ending import close_with, fail
from fairseq_plugins.process.output import counted
from fairseq_plugins.shared.invalid_text import InvalidLines, mend
from fairseq_plugins.translation.drafts import DraftSources


class Translator:
    """Translate lines and format each as --output-format asks."""

    def __init__(self, model: Model, args: argparse.Namespace, drafts: DraftSources | None = None) -> None:
        self.model = model
        self.args = args
        self.drafts = drafts
        self.total = CallStatistics()
        self._options: CallOptions = {
            "beam": args.beam,
            "num_hypotheses": args.nbest,
            "alignments": args.alignments,
            "batch_size": args.batch_size,
        }
        # Wrong ones are an error also in a process that has nothing to translate: it would finish a shard.
        model.translate_batch([], **self._options)
        self._too_long: set[int] = set()
        self._invalid = InvalidLines()
        close_with(self, self._invalid.report)

    def translate(self, lines: Sequence[str], before: int) -> list[str]:
        """Return the output for lines of `chunks`, which follow `before` lines of the file.

        Reports and repairs lines that are not UTF-8. Reports lines that are too long as failures.
        """
        model, args = self.model, self.args
        mended = self._invalid.mend(lines, before)
        pairs = [self._sentences(line) for line in mended]
        tokens = [[model.tokenize(sentence) for sentence, _ in line] for line in pairs]
        longest = [max(map(len, line), default=0) + 1 for line in tokens]
        fitting = [index for index, length in enumerate(longest) if length <= model.max_source_tokens]
        sentences = [(before + index, sentence) for index in fitting for sentence, _ in pairs[index]]
        # By which samples differ; the sentences of a line have numbers far apart.
        numbers = [before + index + (place << 24) for index in fitting for place in range(len(pairs[index]))]
        drafts = None if self.drafts is None else self.drafts.tokens(sentences, model)
        batch = model.translate_batch(
            [words for index in fitting for words in tokens[index]],
            drafts=drafts,
            numbers=numbers,
            return_scores=args.output_format == "jsonl",
            **self._options,
        )
        self.total.seconds += model.statistics.seconds
        for translation in batch:
            self.total.add(translation)
        if self.drafts is not None:
            texts = [translation.text for translation in batch]
            self.drafts.remember([sentence for _, sentence in sentences], texts)
        left, output = iter(batch), []
        for index, line in enumerate(pairs):
            number = before + index + 1
            if longest[index] > model.max_source_tokens:
                self._report_too_long(number, longest[index])
                output.append(too_long(number, args.output_format))
            else:
                output.append(self._line(number, [(next(left), separator) for _, separator in line]))
        return output

    def report_if_too_long(self, number: int, line: str) -> None:
        """Report a line, with its number from 1, that an earlier run or another process found too long."""
        if number in self._too_long:
            return
        sentences = self._sentences(mend(line.removesuffix("\n")))
        longest = max((len(self.model.tokenize(sentence)) for sentence, _ in sentences), default=0) + 1
        if longest > self.model.max_source_tokens:
            self._report_too_long(number, longest)

    def _report_too_long(self, number: int, tokens: int) -> None:
        self._too_long.add(number)
        fail(f"line {number}: has {tokens} tokens, and the model reads at most {self.model.max_source_tokens}; "
             "its translation is empty; split it")  # fmt: skip

    def _sentences(self, line: str) -> list[tuple[str, str]]:
        """Return the sentences of a line, each with the blanks that follow it."""
        return split_text(line, self.model.source_lang) if self.args.split == "sentences" else [(line, "")]

    def _line(self, number: int, sentences: Sequence[tuple[Translation, str]]) -> str:
        """Return the output for a line of sentences, each with the blanks that follow it."""
        text = join_text([(sentence.text, separator) for sentence, separator in sentences], self.model.target_lang)
        if self.args.output_format == "text":
            return text + "\n"
        records = [self._record(sentence) for sentence, _ in sentences]
        values = {"sentences": records} if self.args.split == "sentences" else records[0]
        return json.dumps({"line": number, "text": text, **values}, ensure_ascii=False) + "\n"

    def _record(self, translation: Translation) -> dict[str, Any]:
        values = {**_rounded(asdict(translation)), "iterations": translation.iterations}
        alternatives = values.pop("alternatives")
        if not self.args.alignments:
            del values["alignment"]
        if self.args.nbest > 1:
            values["alternatives"] = [
                {name: alternative[name] for name in ("text", "tokens", "score", "token_scores")}
                for alternative in map(_rounded, alternatives)
            ]
        return values

    def summary(self) -> str:
        """Return counts and speed in one line."""
        total, accepted = self.total, self.total.tokens_per_iteration
        counts = [counted(total.sentences, "sentence"), counted(total.tokens, "token")]
        if accepted is not None:
            counts += [counted(total.iterations, "iteration"), f"{accepted:.2f} tokens per iteration"]
        parts = [f"batch size {self.args.batch_size}"]
        if total.seconds:  # else nothing was decoded
            parts.append(f"{total.sentences / total.seconds:.1f} sentences/s")
        return f"{self.model.decoder}: {', '.join([*counts, *parts])}"


def too_long(number: int, output_format: str) -> str:
    """Return the output for a line that is too long."""
    if output_format == "text":
        return "\n"
    return json.dumps({"line": number, "text": "", "error": "too long"}) + "\n"


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a translation, with scores rounded to four decimals."""
    scores = [round(score, 4) for score in values["token_scores"]]
    return {**values, "score": round(values["score"], 4), "token_scores": scores}
