"""Check of the released models: fairseq's ids in fp32, greedy's in half precision."""

import lzma
from collections.abc import Iterator
from pathlib import Path

from sentencepiece import SentencePieceProcessor

from fairseq_plugins.benchmarks.bench import Bench
from fairseq_plugins.benchmarks.contenders import CONTENDERS
from fairseq_plugins.benchmarks.gpu_check.environment import ROOT, Environment, decode, same_ids
from fairseq_plugins.benchmarks.gpu_check.random_models import LIMITS, binarise, prepare
from fairseq_plugins.benchmarks.gpu_check.report import NOT_RUN, Outcome, passed_if
from fairseq_plugins.benchmarks.setting import configure
from fairseq_plugins.shared.files import new_folder

_EXAMPLES = ROOT / "examples"
NO_MODELS = "there are no models and texts here: run it in a checkout of the project"


def released_models(env: Environment) -> Outcome:
    """Compare the default engine with fairseq's searches in fp32, and `gad` with `greedy` in fp16."""
    by_name = {contender.name: contender for contender in CONTENDERS}
    rows, good = [["model", "decoder", "identical"]], True
    for precision, name in (("fp32", "gad"), ("fp32", "fast-beam"), ("fp16", "gad")):
        for folder, bench in released_benches(env, precision):
            ours = by_name[name]
            reference = by_name[ours.reference if precision == "fp32" else "greedy"]
            size = env.batch_size if precision == "fp32" else 1
            output = decode(bench, bench.generator(ours), bench.order, env.batch_size)
            same = same_ids(output, decode(bench, bench.generator(reference), bench.order, size))
            good &= same == len(output)
            rows.append([folder, f"{name} {precision}", f"{same} of {len(output)}, {reference.name}"])
    if len(rows) == 1:
        return Outcome(NOT_RUN, NO_MODELS)
    return passed_if(good, "all identical" if good else "ids differ", rows=rows)


def options_of(precision: str) -> list[str]:
    """Return the options of a precision."""
    return [] if precision == "fp32" else [f"--{precision}"]


def random_bench(env: Environment, *options: str) -> Bench:
    """Return a bench with models of random weights, the drafter with the verifier's states."""
    data, verifier, drafter = prepare(env)
    models = [data, "--path", verifier, "--drafter-path", drafter, "--results", str(env.folder / "models")]
    _, bench, _ = configure([*models, *LIMITS, *env.device_options, *options])
    return bench


def released_benches(
    env: Environment, precision: str, only_largest: bool = False, only: str | None = None
) -> Iterator[tuple[str, Bench]]:
    """Yield name and bench of released models with a drafter, the largest first; none outside of a checkout.

    With `only` this name is the only one whose models are loaded.
    """
    drafters = list(env.checkpoints.glob("*/drafter.pt")) if _EXAMPLES.is_dir() else []
    drafters.sort(key=lambda file: -file.with_name("verifier.pt").stat().st_size)
    for drafter in drafters[: 1 if only_largest else None]:
        folder = drafter.parent
        if only not in (None, folder.name):
            continue
        models = ["--path", str(folder / "verifier.pt"), "--drafter-path", str(drafter)]
        # The maximum length must not depend on the longest source of a batch.
        options = ["--max-len-a", "0", "--max-len-b", "80", *options_of(precision), *env.device_options]
        _, bench, _ = configure([str(_binarised(env, folder)), *models, *options])
        yield folder.name, bench


def _binarised(env: Environment, folder: Path) -> Path:
    """Return a data folder with sentences of the examples in a model's subwords; made once."""
    target = env.folder / "released" / folder.name
    has_own_text = (_EXAMPLES / folder.name / "test.src").exists()
    languages = ("src", "tgt") if has_own_text else folder.name.rpartition(".")[2].split("-")
    if not target.exists():
        text = (_EXAMPLES / folder.name / "test.src").read_text(encoding="utf-8") if has_own_text else _english()
        pieces = SentencePieceProcessor(model_file=str(folder / "subwords.model"))
        lines = [
            " ".join(pieces.encode(line, out_type=str)) for line in text.removesuffix("\n").split("\n")[: env.sentences]
        ]
        with new_folder(target) as partial:
            binarise(partial, lines, *(folder / f"dict.{language}.txt" for language in languages))
    return target / "data"


def _english() -> str:
    with lzma.open(_EXAMPLES / "cldr.en-de" / "test.en.xz", "rt", encoding="utf-8") as file:
        return file.read()
