"""Translate raw text, one sentence per line, from a file or standard input to a file or standard output.

    spec-dec-translate checkpoints/multi30k.en-de <captions.en >captions.de
    spec-dec-translate checkpoints/ua-gec --decoder iad --input essays.txt --output corrected.txt

With --input and --output an interrupted run can be resumed, and several processes share the work (--processes,
torchrun, a Slurm array). Until the translation is complete, its shards are in a folder beside the output.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import torch

from fairseq_plugins.api import load
from fairseq_plugins.api.generators import BATCH_SIZE
from fairseq_plugins.api.options import LOAD, spelling_of
from fairseq_plugins.decoding import methods
from fairseq_plugins.errors import ConfigurationError, flag, spell_as
from fairseq_plugins.process.ending import failure_ends_others
from fairseq_plugins.process.output import say
from fairseq_plugins.shared.cli import CommandParser, named_values, positive, run_command
from fairseq_plugins.shared.display import progress_bar
from fairseq_plugins.shared.files import Destination, check_no_input, destination, unwritable
from fairseq_plugins.shared.invalid_text import ENCODING, refuse_utf16
from fairseq_plugins.shared.shards import ShardWriter, read_lines
from fairseq_plugins.shared.workers import Worker, end_with_parent, find_worker, start_processes, take_shards
from fairseq_plugins.translation.drafts import count_lines, draft_sources
from fairseq_plugins.translation.output_shards import CHUNK, OutputShards, forget_run, origin
from fairseq_plugins.translation.translator import Translator, too_long

NAME = "spec-dec-translate"


def get_parser() -> CommandParser:
    """Return the parser of the command."""
    description = (
        "Translate raw text, one sentence per line. With --input and --output an interrupted run can be resumed, and\n"
        "several processes share the work."
    )
    example = f"{NAME} checkpoints/ua-gec --decoder iad --input essays.txt --output corrected.txt"
    parser = CommandParser(NAME, description, example)
    text = parser.add_argument_group("text").add_argument
    text("--input", metavar="FILE", help="raw text, one sentence per line (default: -, standard input)")
    text("--output", metavar="FILE", help="file of the translation (default: -, standard output)")
    jsonl = "jsonl: for every sentence text, tokens, scores (natural logarithms), iterations and tokens per iteration"
    text("--output-format", choices=["text", "jsonl"], default="text", help=jsonl)
    split = "sentences: a line has several sentences, which are translated one by one and joined (default: none, a "
    split += "line is one sentence)"
    text("--split", choices=["none", "sentences"], default="none", help=split)
    buffer = "lines read before they are sorted by length and decoded, without --output "
    text("--buffer-size", type=positive, metavar="N", help=f"{buffer}(default: {CHUNK}; at a terminal 1)")
    model = parser.add_argument_group("model").add_argument
    model("folder", nargs="?", metavar="FOLDER", help="verifier.pt, drafter.pt, dictionaries and subwords")
    model("--verifier", metavar="MODEL.pt", help="the verifier, if it is not in FOLDER")
    model("--drafter", metavar="MODEL.pt", help="the drafter, if it is not in FOLDER")
    model("--data", metavar="FOLDER", help="folder of the dictionaries, if not FOLDER")
    task = "fairseq's task, for a model whose task adds language tokens (default: spec_dec)"
    model("--task", default="spec_dec", metavar="NAME", help=task)
    cut = "sentencepiece model, or codes of subword-nmt or fastBPE (default: those of FOLDER)"
    model("--subwords", metavar="FILE", help=cut)
    moses = "tokenizer that splits text before subwords (default: moses if FOLDER has codes of subword-nmt or fastBPE "
    moses += "and its source dictionary marks of Moses, else none)"
    model("--tokenizer", choices=["moses", "none"], help=moses)
    language = "language; needed for multilingual models, and if the names of files do not tell it"
    model("--source-lang", metavar="NAME", help=f"source {language}")
    model("--target-lang", metavar="NAME", help=f"target {language}")
    decoding = parser.add_argument_group("decoding").add_argument
    default = "(default: gad with a drafter, greedy without, reuse with --drafts or --memory)"
    names = ", ".join(methods.DECODERS)
    decoding("--decoder", choices=methods.DECODERS, metavar="NAME", help=f"{names} {default}")
    drafts = "drafts for --decoder reuse, such as an earlier translation: text with a line for each of --input, or "
    drafts += "jsonl of an earlier run; several files are several drafts"
    decoding("--drafts", nargs="+", metavar="FILE", help=drafts)
    memory = "folder of earlier outputs; those of similar sources are drafts for --decoder reuse"
    decoding("--memory", metavar="FOLDER", help=memory)
    decoding("--memory-add", action="store_true", help="add the output to --memory, for later runs and later sentences")
    decoding("--beam", type=positive, metavar="N", help="hypotheses, for decoders that keep several (default: 5)")
    nbest = "hypotheses written for each sentence, further ones as alternatives in jsonl (default: 1)"
    decoding("--nbest", type=positive, default=1, metavar="N", help=nbest)
    decoding("--sampling", action="store_true", help="draw --nbest samples of each sentence; --set temperature=0.7 ...")
    decoding("--seed", type=int, metavar="N", help="of --sampling; the same samples for the same lines (default: 1)")
    aligned = "jsonl: the source subword of each output subword, by attention"
    decoding("--alignments", action="store_true", help=aligned)
    block = "most tokens in a draft (default: as the drafter was trained)"
    decoding("--block-size", type=positive, metavar="K", help=block)
    other = "any other option of decoding, such as lenpen=0.6 or preset=high-quality; repeatable (docs/options.md)"
    decoding("--set", action="append", default=[], metavar="NAME=VALUE", help=other)
    together = f"sentences decoded together (default: {BATCH_SIZE})"
    decoding("--batch-size", type=positive, default=BATCH_SIZE, metavar="N", help=together)
    decoding("--device", metavar="NAME", help="cpu, cuda or cuda:N (default: a GPU if there is one)")
    decoding("--threads", type=positive, metavar="N", help="threads on the CPU (default: torch's)")
    precision = "precision of the weights (default: fp32)"
    decoding("--precision", choices=["fp32", "fp16", "bf16"], default="fp32", help=precision)
    processes = "processes on this machine, with --input and --output (default: one for each GPU; 1 without GPUs)"
    decoding("--processes", type=positive, metavar="N", help=processes)
    return parser


def set_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options for `load`; raise ConfigurationError unless --set has NAME=VALUE."""
    given = {"block_size": args.block_size, "seed": args.seed, "sampling": args.sampling or None}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for name, value in named_values(args.set).items():
        if name in vars(args) and name not in LOAD.known:
            raise ConfigurationError("--set", f"{name}={value}", "has its own option", f"give {{{flag(name)}}}")
        options[name] = value
    return options


def chunks(file: TextIO, size: int) -> Iterator[list[str]]:
    """Yield `size` lines at a time without their ends; bytes that are not UTF-8 are escaped."""
    while lines := [line.removesuffix("\n") for line in islice(file, size)]:
        yield lines


def _open_text(path: str) -> TextIO:
    return open(path, encoding=ENCODING, errors="surrogateescape", newline="\n")


def run(argv: Sequence[str]) -> None:
    """Parse arguments, and translate in this process or in several."""
    parser = get_parser()
    spell_as(spelling_of(parser))
    args = parser.parse_args(argv)
    end_with_parent()
    options = set_options(args)
    args.input, args.output = (None if name == "-" else name for name in (args.input, args.output))
    output = _check_files(args)
    worker = find_worker()
    processes = args.processes or (1 if args.device is not None else max(1, torch.cuda.device_count()))
    if args.input is None or output is None or output.is_direct:
        if worker.num_workers > 1 or (args.processes or 1) > 1:
            problem = "several processes share a file"
            raise ConfigurationError("--processes", None, problem, "give {--input} and {--output}")
        _translate_stream(make_translator(args, options, worker), output)
    elif processes > 1 and not worker.spawned:
        start_processes(processes, "fairseq_plugins.translation.cli", argv)
        if worker.num_jobs == 1:
            forget_run(output.path)
    else:
        run_id = worker.run_id if worker.num_workers > 1 else ""
        with OutputShards(output, origin(args), worker.num_workers, run_id) as shards:
            _translate_shards(lambda: make_translator(args, options, worker), args, shards, worker)


def _check_files(args: argparse.Namespace) -> Destination | None:
    """Return the destination of the output, None for standard output; raise ConfigurationError for what cannot be."""
    if args.input is not None:
        _check_input(args.input)
    elif sys.stdin is None:
        raise ConfigurationError("--input", "-", "is closed", "give a file of text")
    if args.nbest > 1 and args.output_format != "jsonl":
        raise ConfigurationError("--nbest", args.nbest, "a line of text is one", "add {--output-format jsonl}")
    if args.split == "sentences" and args.drafts is not None:
        raise ConfigurationError("--split", "sentences", "{--drafts} are for whole lines", "leave one of them out")
    if args.alignments and args.output_format != "jsonl":
        raise ConfigurationError("--alignments", None, "a line of text has none", "add {--output-format jsonl}")
    output = None if args.output is None else destination(args.output, "--output")
    if args.input is not None and args.output is not None:
        check_no_input(args.output, "--output", [args.input])
    return output


def _check_input(name: str) -> None:
    """Raise ConfigurationError for an input that cannot be read twice, or is UTF-16."""
    path = Path(name)
    if path.exists() and not path.is_file():
        problem = "is a folder" if path.is_dir() else "is not a regular file"
        raise ConfigurationError("--input", name, problem, "give a file of text, or standard input without {--input}")
    if not path.exists():
        raise ConfigurationError("--input", name, "no such file", "give raw text, a sentence a line")
    with path.open("rb") as file:
        refuse_utf16(file.read(2).decode(errors="surrogateescape"))


def make_translator(args: argparse.Namespace, options: dict[str, Any], worker: Worker) -> Translator:
    """Load the model; raises ConfigurationError as `load`, and for drafts in another language."""
    drafts = draft_sources(args)
    device, task_options = args.device, None
    if device is None and torch.cuda.is_available():
        device = f"cuda:{worker.device}"
    if args.task != "spec_dec":
        task_options = {name: options.pop(name) for name in set(options) - LOAD.known}
    same = ("verifier", "drafter", "data", "task", "source_lang", "target_lang", "subwords", "tokenizer")
    model = load(
        args.folder,
        decoder=args.decoder or (None if drafts is None else "reuse"),
        task_options=task_options,
        device=device,
        **{name: getattr(args, name) for name in (*same, "precision", "threads")},
        **options,
    )
    if drafts is not None:
        drafts.check(model)
    return Translator(model, args, drafts)


def _translate_shards(
    make: Callable[[], Translator], args: argparse.Namespace, shards: OutputShards, worker: Worker
) -> None:
    """Translate this process's share, and join the shards if all are finished."""
    translator: Translator | None = None
    lines, translated = count_lines(args.input), 0
    for index, shard in take_shards(worker, shards.count, shards.is_finished, shards.begin):
        with shard:
            translator = translator or make()
            translated += _translate_shard(translator, shard, index, shards.count, lines)
    is_joined = shards.join()
    if is_joined and translated < lines:  # an earlier run, or another process, may have found some too long
        with _open_text(args.input) as text, open(args.output, encoding="utf-8", newline="\n") as output:
            for number, (line, translation) in enumerate(zip(text, output, strict=False), 1):
                if translation == too_long(number, args.output_format) and not line.isspace():
                    translator = translator or make()
                    translator.report_if_too_long(number, line)
    if is_joined:
        say(f"{NAME}: all of {args.input} is in {args.output}")
    if translator is None:
        if not is_joined:
            say(f"{NAME}: {args.output} was translated before")
        return
    if translator.total.sentences:  # else other processes had translated all
        say(translator.summary())
    if failure_ends_others():
        shards.wait()


def _translate_shard(translator: Translator, shard: ShardWriter, index: int, count: int, lines: int) -> int:
    """Translate the missing chunks of one of `count` shards of a file of `lines` lines; return how many lines."""
    total = sum(min(CHUNK, lines - start) for start in range(index * CHUNK, lines, count * CHUNK))
    done = sum(1 for _ in read_lines(shard.file))
    missing, number = total - done, 0
    name = f"shard {index + 1} of {count}" if count > 1 else translator.model.decoder
    if done:
        say(f"{NAME}: resuming after {done} of {total} lines ({name})")
    with _open_text(translator.args.input) as file, progress_bar(total, initial=done, desc=name) as bar:
        for turn, chunk in enumerate(chunks(file, CHUNK)):
            before, number = number, number + len(chunk)
            if turn % count != index:
                continue
            skipped = min(done, len(chunk))
            done -= skipped
            if skipped < len(chunk):
                shard.write("".join(translator.translate(chunk[skipped:], before + skipped)))
                bar.update(len(chunk) - skipped)
    if number != lines:
        remedy = f"wait until it is whole, remove {shard.file.parent} and translate it again"
        raise ConfigurationError("--input", translator.args.input, "changed while it was translated", remedy)
    shard.finish()
    return missing


def _translate_stream(translator: Translator, output: Destination | None) -> None:
    """Translate chunk by chunk, to standard output or to a file that is renamed when complete."""
    args = translator.args
    for stream, encoding in (sys.stdin, ENCODING), (sys.stdout, "utf-8"):
        if hasattr(stream, "reconfigure"):  # not with a closed standard output, see `watch_output`
            stream.reconfigure(encoding=encoding, errors="surrogateescape", newline="\n")
    partial: Path | None = None
    with ExitStack() as opened:
        file, target = sys.stdin, sys.stdout
        if args.input is not None:
            file = opened.enter_context(_open_text(args.input))
        if output is not None:
            if output.is_direct:
                target = open(output.path, "w", encoding="utf-8")  # noqa: SIM115
            else:
                target, partial = output.open_partial("x", encoding="utf-8")
            opened.enter_context(target)
        number = 0
        for chunk in chunks(file, args.buffer_size or (1 if file.isatty() else CHUNK)):
            lines = translator.translate(chunk, number)
            number += len(chunk)
            try:
                target.writelines(lines)
                target.flush()
            except OSError as error:
                if output is None:
                    raise
                with suppress(OSError):
                    target.close()  # writes what is buffered, and fails again
                raise unwritable(output.path, "--output", error) from error
    if output is not None and partial is not None:
        partial.replace(output.path)
    say(translator.summary())


main = partial(run_command, NAME, run)


if __name__ == "__main__":
    sys.exit(main())
