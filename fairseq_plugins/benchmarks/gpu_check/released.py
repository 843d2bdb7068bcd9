"""Check of the released models: fairseq's ids in fp32, greedy's in half precision."""

import lzma
from collections.abc import Iterator
from pathlib import Path

from sentencepiece import SentencePieceProcessor

from fairseq_plugins.benchmarks import replay
from fairseq_plugins.benchmarks.bench import Bench
from fairseq_plugins.benchmarks.contenders import CONTENDERS
from fairseq_plugins.benchmarks.gpu_check.environment import GREEDY, ROOT, Environment, decode, same_ids
from fairseq_plugins.benchmarks.gpu_check.report import NOT_RUN, Outcome, passed_if
from fairseq_plugins.benchmarks.setting import configure

_EXAMPLES = ROOT / "examples"


def released_models(env: Environment) -> Outcome:
    """Compare `gad` and `fast-beam` of every model with fairseq's searches in fp32, and `gad` with `greedy` in fp16."""
    folders = sorted(file.parent for file in env.checkpoints.glob("*/drafter.pt"))
    if not folders or not _EXAMPLES.is_dir():
        return Outcome(NOT_RUN, "there are no models and texts here: run it in a checkout of the project")
    by_name = {contender.name: contender for contender in CONTENDERS}
    gad, beam_search = by_name["gad"], by_name["fast-beam"]
    size = env.batch_sizes[1]
    rows, good = [["model", "decoder", "identical"]], True
    for folder in folders:
        data = _binarised(env, folder)
        for precision, ours, reference, reference_size in (
            ("fp32", gad, by_name[gad.reference], size),
            ("fp32", beam_search, by_name[beam_search.reference], size),
            ("fp16", gad, GREEDY, 1),
        ):
            bench = _bench(env, folder, data, *(["--fp16"] if precision == "fp16" else []))
            output = decode(bench, bench.generator(ours), bench.order, size)
            same = same_ids(output, decode(bench, bench.generator(reference), bench.order, reference_size))
            good &= same == len(output)
            cells = [f"{ours.name} {precision}", f"{same} of {len(output)}, {reference.name}"]
            rows.append([folder.name, *cells])
    return passed_if(good, "all identical" if good else "ids differ", rows=rows)


def released_benches(env: Environment, precision: str) -> Iterator[tuple[str, Bench]]:
    """Yield name and bench of each released model with a drafter, in a precision."""
    for folder in sorted(file.parent for file in env.checkpoints.glob("*/drafter.pt")):
        options = [] if precision == "fp32" else [f"--{precision}"]
        yield folder.name, _bench(env, folder, _binarised(env, folder), *options)


def _bench(env: Environment, folder: Path, data: Path, *options: str) -> Bench:
    models = ["--path", str(folder / "verifier.pt"), "--drafter-path", str(folder / "drafter.pt")]
    # The maximum length must not depend on the longest source of a batch.
    limits = ["--max-len-a", "0", "--max-len-b", "80"]
    return configure([str(data), *models, *limits, *env.device_options, *options]).bench


def _binarised(env: Environment, folder: Path) -> Path:
    """Return a data folder with sentences of the examples in a model's subwords; made once."""
    target = env.folder / "released" / folder.name
    has_own_text = (_EXAMPLES / folder.name / "test.src").exists()
    languages = ("src", "tgt") if has_own_text else folder.name.rpartition(".")[2].split("-")
    if not (target / "data").exists():
        text = (_EXAMPLES / folder.name / "test.src").read_text(encoding="utf-8") if has_own_text else _english()
        pieces = SentencePieceProcessor(model_file=str(folder / "subwords.model"))
        lines = [
            " ".join(pieces.encode(line, out_type=str)) for line in text.removesuffix("\n").split("\n")[: env.sentences]
        ]
        target.mkdir(parents=True, exist_ok=True)
        replay.binarise(target, lines, *(folder / f"dict.{language}.txt" for language in languages))
    return target / "data"


def _english() -> str:
    with lzma.open(_EXAMPLES / "cldr.en-de" / "test.en.xz", "rt", encoding="utf-8") as file:
        return file.read()
