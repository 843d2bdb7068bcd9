"""Quality of hypotheses against references, in one command.

    spec-dec-metrics --hypotheses generate.out [--references FILE ...] [--source FILE] [--baseline FILE]

Files are plain text, a sentence a line, or the output of fairseq-generate or fairseq-interactive, whose sentences are
put back in order. All values come from the tools that papers cite (sacrebleu, sacremoses, rouge-score, COMET), except
SARI (`sari.py`), F0.5 of edits (`edits.py`) and the token repetition ratio, which have no packaged tool.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import sacrebleu
import sacremoses
from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest
from tabulate import tabulate

from fairseq_plugins.commands.cli import run_command
from fairseq_plugins.commands.files import write_atomically
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.metrics.edits import corpus_edits
from fairseq_plugins.metrics.sari import Sari, corpus_sari, mean_sari, sari_tokens
from fairseq_plugins.metrics.texts import Text, aligned, read_text

ROUGE_TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")


@dataclass
class Score:
    """One value.

    Attributes:
        metric: its name as papers print it.
        value: the number; higher is better except for TER and repetition.
        shown: the number as printed.
        details: parts of the value.
        signature: how it was computed, for others to repeat it.
    """

    metric: str
    value: float
    shown: str
    details: str
    signature: str


@dataclass
class Difference:
    """How far hypotheses equal the baseline's.

    Attributes:
        identical: sentences with exactly the same text.
        sentences: all of them.
        first: number of the first sentence that differs, None when none does.
        word: position of the first differing word in it, from 1.
        baseline: that sentence of the baseline.
        hypothesis: that sentence here.
    """

    identical: int
    sentences: int
    first: int | None = None
    word: int | None = None
    baseline: str = ""
    hypothesis: str = ""


class Sentences:
    """The same sentences raw, as sacreBLEU wants them, and split into Moses tokens, as papers before it did."""

    def __init__(self, lines: Sequence[str], settings: "Settings") -> None:
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
        """Moses tokens with spaces between, hyphens split off with `--compound-split`."""
        lines = [" ".join(tokens) for tokens in self.tokens]
        return [split_compounds(line) for line in lines] if self.settings.compound_split else lines


@dataclass
class Settings:
    """How to prepare text and which variant of a metric to compute; see the options of the same names."""

    lang: str = "en"
    tokenized: bool = False
    compound_split: bool = False
    tokenize: str | None = None
    stemmer: bool = False
    sentence_separator: str = "<q>"
    comet_model: str | None = None
    bootstrap_samples: int = 1000


@dataclass
class Sample:
    """What is compared. `references` has one entry per reference file."""

    numbers: list[int]
    hypotheses: Sentences
    references: list[Sentences]
    sources: Sentences | None = None
    baseline: Sentences | None = None
    settings: Settings = field(default_factory=Settings)


# ---------------------------------------------------------------------------------------------------- the metrics


def split_compounds(line: str) -> str:
    """Split words at hyphens into `a ##AT##-##AT## b`, as fairseq's `scripts/compound_split_bleu.sh` does.

    English-German papers since Vaswani et al. 2017 report BLEU of text split so.
    """
    return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", line)


def tokenized_bleu_metric() -> sacrebleu.BLEU:
    """BLEU as `multi-bleu.perl` computes it: tokens as they are, no smoothing."""
    return sacrebleu.BLEU(tokenize="none", smooth_method="none", force=True)


def sacrebleu_metrics(settings: Settings) -> dict[str, Metric]:
    """sacrebleu's metrics of raw text by the names of `--metrics`."""
    try:
        bleu = sacrebleu.BLEU(tokenize=settings.tokenize, trg_lang=settings.lang)
    except (ImportError, RuntimeError) as error:
        name = settings.tokenize or settings.lang
        raise ConfigurationError(f"--tokenize {name}: {' '.join(str(error).split())}") from error
    return {"sacrebleu": bleu, "chrf": sacrebleu.CHRF(), "ter": sacrebleu.TER()}


def tokenized_bleu(sample: Sample) -> list[Score]:
    """BLEU of Moses-tokenised text, as in the papers' tables."""
    metric = tokenized_bleu_metric()
    score = metric.corpus_score(
        sample.hypotheses.tokenized_lines, [reference.tokenized_lines for reference in sample.references]
    )
    settings = sample.settings
    how = "as given" if settings.tokenized else f"Moses tokens, {settings.lang}"
    how += ", compounds split" if settings.compound_split else ""
    return [Score("BLEU, tokenised", score.score, f"{score.score:.2f}", _after_equals(score), how)]


def _sacrebleu_scorer(name: str) -> Callable[[Sample], list[Score]]:
    def scorer(sample: Sample) -> list[Score]:
        metric = sacrebleu_metrics(sample.settings)[name]
        score = metric.corpus_score(sample.hypotheses.raw, [reference.raw for reference in sample.references])
        shown_name = "sacreBLEU" if name == "sacrebleu" else score.name
        signature = str(metric.get_signature())
        return [Score(shown_name, score.score, f"{score.score:.2f}", _after_equals(score), signature)]

    return scorer


def _after_equals(score: Any) -> str:
    """What sacrebleu prints behind the number: precisions, brevity penalty."""
    return score.format(width=2).partition("= ")[2].partition(" ")[2]


def rouge(sample: Sample) -> list[Score]:
    """ROUGE-1, ROUGE-2, ROUGE-L and its summary-level variant: mean F1 by rouge-score; best of several references."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise ConfigurationError(
            "--metrics rouge: rouge-score is not installed; pip install rouge-score"
        ) from error
    settings = sample.settings

    def prepared(lines: Sequence[str]) -> list[str]:
        return [line.replace(settings.sentence_separator, "\n") for line in lines]

    scorer = RougeScorer(ROUGE_TYPES, use_stemmer=settings.stemmer)
    references = zip(*(prepared(reference.raw) for reference in sample.references), strict=True)
    found = [
        scorer.score_multi(list(targets), hypothesis)
        for targets, hypothesis in zip(references, prepared(sample.hypotheses.raw), strict=True)
    ]
    how = "F1 by rouge-score" + (", stemmed" if settings.stemmer else "")
    scores = []
    for kind in ROUGE_TYPES:
        means = [100 * sum(score[kind][part] for score in found) / len(found) for part in range(3)]
        name = kind.replace("rouge", "ROUGE-")
        details = f"precision {means[0]:.2f}, recall {means[1]:.2f}"
        scores.append(Score(name, means[2], f"{means[2]:.2f}", details, how))
    return scores


def sari(sample: Sample) -> list[Score]:
    """SARI in both conventions, see `sari.py`."""
    assert sample.sources is not None
    tokenize = not sample.settings.tokenized
    source, output, *references = (
        [sari_tokens(line, tokenize) for line in sentences.lines]
        for sentences in (sample.sources, sample.hypotheses, *sample.references)
    )
    how = "lowercased, " + ("13a" if tokenize else "tokens as given")
    return [
        _sari_score("SARI", mean_sari(source, output, references), f"mean over sentences, {how}"),
        _sari_score("SARI, EASSE", corpus_sari(source, output, references), f"counts of the corpus, {how}"),
    ]


def _sari_score(name: str, value: Sari, how: str) -> Score:
    parts = f"add {value.add:.2f}, keep {value.keep:.2f}, delete {value.delete:.2f}"
    return Score(name, value.score, f"{value.score:.2f}", parts, how)


def edit_f(sample: Sample) -> list[Score]:
    """F0.5 of corrections: edits against the source, compared with the references' own; see `edits.py`."""
    assert sample.sources is not None
    references = [reference.tokens for reference in sample.references]
    counts = corpus_edits(sample.sources.tokens, sample.hypotheses.tokens, references)
    value = 100 * counts.f(0.5)
    settings = sample.settings
    details = (
        f"precision {100 * counts.precision:.2f}, recall {100 * counts.recall:.2f}; "
        f"{counts.right} edits right, {counts.wrong} wrong, {counts.missed} missed"
    )
    tokens = "tokens as given" if settings.tokenized else f"Moses tokens, {settings.lang}"
    how = f"edits of a word alignment, neighbouring ones merged, {tokens}; not M2, not ERRANT"
    return [Score("edit F0.5", value, f"{value:.2f}", details, how)]


def repetition_ratio(sentences: Sequence[Sequence[str]]) -> float:
    """Share of tokens that equal the token before them (GAD Table 9), the sign of a drafter left alone.

    Args:
        sentences: tokens of each sentence; the first of a sentence has none before it.
    """
    tokens = sum(map(len, sentences))
    repeated = sum(token == before for line in sentences for before, token in zip(line, line[1:], strict=False))
    return repeated / tokens if tokens else 0.0


def repetition(sample: Sample) -> list[Score]:
    """The token repetition ratio in percent, with the references' own beside it."""
    ratio = 100 * repetition_ratio(sample.hypotheses.tokens)
    theirs = 100 * repetition_ratio([tokens for reference in sample.references for tokens in reference.tokens])
    how = "share of Moses tokens equal to the one before"
    return [Score("repetition", ratio, f"{ratio:.2f} %", f"references {theirs:.2f} %", how)]


def comet(sample: Sample) -> list[Score]:
    """COMET (Rei et al. 2020) with a model on this machine; nothing is downloaded."""
    path = sample.settings.comet_model
    assert path is not None and sample.sources is not None
    # The encoder's tokenizer comes out of Hugging Face's cache; without this it would ask the network first.
    os.environ["HF_HUB_OFFLINE"] = "1"
    from comet import load_from_checkpoint  # type: ignore[import-not-found]

    with contextlib.redirect_stdout(sys.stderr):
        model = load_from_checkpoint(path)
        data = [
            {"src": source, "mt": hypothesis, "ref": reference}
            for source, hypothesis, reference in zip(
                sample.sources.raw, sample.hypotheses.raw, sample.references[0].raw, strict=True
            )
        ]
        value = float(model.predict(data, batch_size=8, gpus=0, progress_bar=sys.stderr.isatty()).system_score)
    return [Score("COMET", value, f"{value:.4f}", "first reference", f"model {path}")]


METRICS: dict[str, Callable[[Sample], list[Score]]] = {
    "bleu": tokenized_bleu,
    "sacrebleu": _sacrebleu_scorer("sacrebleu"),
    "chrf": _sacrebleu_scorer("chrf"),
    "ter": _sacrebleu_scorer("ter"),
    "rouge": rouge,
    "sari": sari,
    "f0.5": edit_f,
    "repetition": repetition,
    "comet": comet,
}
# Those that measure what was changed in the input: computed by default where a source was given.
REWRITING = {"sari": "SARI", "f0.5": "edit F0.5"}


def obstacle(metric: str, sample: Sample) -> str | None:
    """Why a metric cannot be computed and what to do, None when it can."""
    if metric == "rouge" and importlib.util.find_spec("rouge_score") is None:
        return "ROUGE: rouge-score is not installed; pip install rouge-score"
    if metric in REWRITING and sample.sources is None:
        return f"{REWRITING[metric]}: compares with the source; add --source FILE"
    if metric != "comet":
        return None
    if importlib.util.find_spec("comet") is None:
        return (
            "COMET: unbabel-comet is not installed; pip install unbabel-comet, fetch a model once with comet-score "
            "and give its file with --comet-model MODEL.ckpt"
        )
    path = sample.settings.comet_model
    if path is None:
        return "COMET: no model given; add --comet-model MODEL.ckpt, a model file on this machine"
    if not Path(path).is_file():
        return f"COMET: --comet-model {path} is no file; fetch the model once with comet-score and name its .ckpt file"
    return "COMET: compares with the source; add --source FILE" if sample.sources is None else None


def compute(names: Sequence[str], sample: Sample, insist: bool) -> tuple[list[Score], list[str]]:
    """Compute metrics.

    Args:
        names: keys of `METRICS`.
        sample: what is compared.
        insist: whether a metric that cannot be computed is an error.

    Returns:
        the values, and for each metric left out a line that says what to do.

    Raises:
        ConfigurationError: for a metric that cannot be computed, when insisting.
    """
    obstacles = {name: obstacle(name, sample) for name in names}
    left_out = [reason for reason in obstacles.values() if reason is not None]
    if left_out and insist:
        raise ConfigurationError(f"--metrics {','.join(names)}: {left_out[0]}")
    return [score for name in names if obstacles[name] is None for score in METRICS[name](sample)], left_out


# --------------------------------------------------------------------------------------------- against a baseline


def significance(names: Sequence[str], sample: Sample) -> list[dict[str, Any]]:
    """Paired bootstrap resampling (Koehn 2004) through sacrebleu, for its metrics among `names`.

    Returns:
        one record a metric: both scores, their bootstrap means and 95 % intervals, and the p-value.
    """
    assert sample.baseline is not None
    records = []
    shown = {"sacrebleu": "sacreBLEU", "chrf": "chrF2", "ter": "TER"}
    raw = {shown[name]: metric for name, metric in sacrebleu_metrics(sample.settings).items() if name in names}
    if "bleu" in names:
        references = [reference.tokenized_lines for reference in sample.references]
        systems = [("baseline", sample.baseline.tokenized_lines), ("here", sample.hypotheses.tokenized_lines)]
        records += _paired({"BLEU, tokenised": tokenized_bleu_metric()}, systems, references, sample.settings)
    if raw:
        references = [reference.raw for reference in sample.references]
        systems = [("baseline", sample.baseline.raw), ("here", sample.hypotheses.raw)]
        records += _paired(raw, systems, references, sample.settings)
    return records


def _paired(
    metrics: dict[str, Metric], systems: list[tuple[str, list[str]]], references: list[list[str]], settings: Settings
) -> list[dict[str, Any]]:
    test = PairedTest(systems, metrics, references, test_type="bs", n_samples=settings.bootstrap_samples)
    signatures, scores = test()
    records = []
    # sacrebleu keeps the order of the metrics and gives them names of its own.
    for name, (key, signature) in zip(metrics, signatures.items(), strict=True):
        baseline, here = scores[key]
        record: dict[str, Any] = {"metric": name, "p": float(here.p_value), "signature": str(signature)}
        for side, result in (("baseline", baseline), ("here", here)):
            record[side] = {"score": result.score, "mean": float(result.mean), "interval": float(result.ci)}
        records.append(record)
    return records


def difference(sample: Sample) -> Difference:
    """Count the sentences whose text equals the baseline's, and find the first that does not."""
    assert sample.baseline is not None
    pairs = list(zip(sample.numbers, sample.baseline.lines, sample.hypotheses.lines, strict=True))
    different = [pair for pair in pairs if pair[1] != pair[2]]
    result = Difference(len(pairs) - len(different), len(pairs))
    if different:
        result.first, result.baseline, result.hypothesis = different[0]
        ours, theirs = result.hypothesis.split(), result.baseline.split()
        same = [one == other for one, other in zip(ours, theirs, strict=False)]
        result.word = (same.index(False) if False in same else len(same)) + 1
    return result


# ------------------------------------------------------------------------------------------------------- command


def load(args: argparse.Namespace, settings: Settings) -> Sample:
    """Read the files of the command line and bring their sentences side by side."""
    hypotheses = read_text(args.hypotheses, "--hypotheses")
    warn_of_subwords(hypotheses)
    warn_of_gaps(hypotheses)
    references = [_reference(file, hypotheses) for file in args.references or []]
    if not references:
        if not hypotheses.references:
            raise ConfigurationError(
                f"--references: missing, and {args.hypotheses} has no T- lines to take them from; add --references FILE"
            )
        references = [aligned(hypotheses, hypotheses.references, hypotheses, "--hypotheses")]
    if args.source is not None:
        source = read_text(args.source, "--source")
        sources = aligned(source, source.sources if source.generated else source.hypotheses, hypotheses, "--source")
    elif hypotheses.sources:
        sources = aligned(hypotheses, hypotheses.sources, hypotheses, "--hypotheses")
    else:
        sources = None
    baseline = None
    if args.baseline is not None:
        text = read_text(args.baseline, "--baseline")
        baseline = Sentences(aligned(text, text.hypotheses, hypotheses, "--baseline"), settings)
    return Sample(
        list(hypotheses.hypotheses),
        Sentences(list(hypotheses.hypotheses.values()), settings),
        [Sentences(lines, settings) for lines in references],
        None if sources is None else Sentences(sources, settings),
        baseline,
        settings,
    )


def _reference(file: str, hypotheses: Text) -> list[str]:
    text = read_text(file, "--references")
    if text.generated and not text.references:
        raise ConfigurationError(f"--references {file}: generate output without T- lines; give the references as text")
    return aligned(text, text.references if text.generated else text.hypotheses, hypotheses, "--references")


def warn_of_subwords(text: Text) -> None:
    """Say so when the hypotheses still are subwords: every metric here wants words."""
    marked = [number for number, line in text.hypotheses.items() if "@@ " in line or "\u2581" in line]
    if marked:
        print(
            f"warning: {text.file}: sentence {marked[0]} is in subwords; generate with --remove-bpe "
            "(--remove-bpe sentencepiece) for comparable values",
            file=sys.stderr,
        )


def warn_of_gaps(text: Text) -> None:
    """Say so when generate output has not all sentences: fairseq drops a last batch that is not full by default."""
    missing = sorted(set(range(max(text.hypotheses) + 1)) - text.hypotheses.keys())
    if missing:
        print(
            f"warning: {text.file}: {len(missing)} sentence(s) are missing, the first is {missing[0]}; fairseq leaves "
            "out a last batch that is not full, and what --skip-invalid-size-inputs-valid-test skips: generate with "
            "--required-batch-size-multiple 1",
            file=sys.stderr,
        )


def report(
    sample: Sample, scores: list[Score], left_out: list[str], tests: list[dict], differs: Difference | None
) -> str:
    """All results as text for a terminal."""
    parts = [
        f"{len(sample.numbers)} sentences, {len(sample.references)} reference(s) each",
        tabulate(
            [(score.metric, score.shown, score.details) for score in scores],
            headers=["metric", "value", "details"],
            colalign=["left", "right", "left"],
            disable_numparse=True,
        ),
        "\n".join(f"{', '.join(names)}: {signature}" for signature, names in _by_signature(scores).items()),
    ]
    if tests:
        rows = [
            (
                test["metric"],
                *(f"{test[side]['score']:.2f} ({test[side]['mean']:.2f} ± {test[side]['interval']:.2f})"
                  for side in ("baseline", "here")),
                f"{test['p']:.4f}",
            )
            for test in tests
        ]
        samples = sample.settings.bootstrap_samples
        parts.append(
            f"Paired bootstrap, {samples} samples: value (mean ± 95 % interval)\n"
            + tabulate(rows, headers=["metric", "baseline", "here", "p"], disable_numparse=True)
        )
    if differs is not None:
        parts.append(_difference_text(differs))
    if left_out:
        parts.append("\n".join(f"left out: {reason}" for reason in left_out))
    return "\n\n".join(parts)


def _by_signature(scores: Sequence[Score]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for score in scores:
        names.setdefault(score.signature, []).append(score.metric)
    return names


def _difference_text(differs: Difference) -> str:
    text = f"Identical to the baseline: {differs.identical} of {differs.sentences} sentences"
    if differs.first is None:
        return text
    return (
        f"{text}; the first difference is in sentence {differs.first} (counted from 0), word {differs.word}:\n"
        f"  baseline: {differs.baseline}\n  here:     {differs.hypothesis}"
    )


def get_parser() -> argparse.ArgumentParser:
    """Options of `spec-dec-metrics`."""
    parser = argparse.ArgumentParser(prog="spec-dec-metrics", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--hypotheses", required=True, metavar="FILE", help="plain text, or output of fairseq-generate")
    add(
        "--references",
        nargs="+",
        metavar="FILE",
        help="one or several references (default: the T- lines of the hypotheses, when these are generate output)",
    )
    source = "source side, for SARI, F0.5 and COMET (default: the S- lines of generate output)"
    add("--source", metavar="FILE", help=source)
    add("--baseline", metavar="FILE", help="other hypotheses: count identical sentences, test the difference")
    add("--metrics", metavar="NAME,NAME", help=f"which of {','.join(METRICS)} (default: all that can be computed)")
    add("--lang", default="en", help="target language, for Moses and sacrebleu tokenisation (default: en)")
    add("--tokenized", action="store_true", help="the files hold Moses tokens: use them, detokenise for sacreBLEU")
    add("--compound-split", action="store_true", help="tokenised BLEU: split words at hyphens, as WMT14 en-de papers")
    add("--tokenize", metavar="NAME", choices=sorted(sacrebleu.BLEU.TOKENIZERS), help="sacreBLEU's tokenizer")
    add("--stemmer", action="store_true", help="ROUGE: stem words")
    add("--sentence-separator", default="<q>", metavar="TEXT", help="ROUGE-Lsum: what parts sentences (default: <q>)")
    add("--comet-model", metavar="MODEL.ckpt", help="COMET: model file on this machine; nothing is downloaded")
    add("--bootstrap-samples", type=int, default=1000, metavar="N", help="for --baseline (default: 1000)")
    add("--json", metavar="FILE", help="write all results there too")
    return parser


def choose(names: str | None, rewriting: bool) -> list[str]:
    """Keys of `METRICS` by the value of `--metrics`; by default all, those of `REWRITING` only with a source.

    Raises:
        ConfigurationError: for an unknown name.
    """
    if names is None:
        return [name for name in METRICS if name not in REWRITING or rewriting]
    chosen = [name.strip().lower() for name in names.split(",")]
    unknown = [name for name in chosen if name not in METRICS]
    if unknown:
        raise ConfigurationError(f"--metrics {unknown[0]}: no such metric; choose from {', '.join(METRICS)}")
    return chosen


def run(argv: Sequence[str]) -> None:
    """Parse, compute, print, write."""
    args = get_parser().parse_args(argv)
    names = choose(args.metrics, args.source is not None)
    if args.bootstrap_samples < 1:
        raise ConfigurationError(f"--bootstrap-samples {args.bootstrap_samples}: give at least 1")
    settings = Settings(**{name: getattr(args, name) for name in Settings.__dataclass_fields__})
    sample = load(args, settings)
    scores, left_out = compute(names, sample, insist=args.metrics is not None)
    if args.metrics is None and args.source is None:
        rewriting = "for rewriting, compares with the source; add --source FILE"
        left_out += [f"{name}: {rewriting}" for name in REWRITING.values()]
    tests = significance(names, sample) if sample.baseline is not None else []
    differs = difference(sample) if sample.baseline is not None else None
    print(report(sample, scores, left_out, tests, differs))
    if args.json is not None:
        result = {
            "arguments": vars(args),
            "sentences": len(sample.numbers),
            "scores": [asdict(score) for score in scores],
            "significance": tests,
            "identical": None if differs is None else asdict(differs),
            "left_out": left_out,
        }
        write_atomically(Path(args.json), json.dumps(result, indent=2, ensure_ascii=False) + "\n", "--json")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `spec-dec-metrics`."""
    return run_command("spec-dec-metrics", run, argv)


if __name__ == "__main__":
    sys.exit(main())
