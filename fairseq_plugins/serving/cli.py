"""Serve translations over HTTP: LibreTranslate's interface, one of our own, and a page to try it.

spec-dec-serve checkpoints/multi30k.en-de
"""

import argparse
import logging
import os
import socket
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fairseq_plugins.api.options import spelling_of
from fairseq_plugins.errors import ConfigurationError, spell_as
from fairseq_plugins.process.deferred import without_garbage_collection
from fairseq_plugins.process.ending import FAILED
from fairseq_plugins.process.output import say
from fairseq_plugins.shared.cli import CommandParser, named_values, not_negative, positive, run_command
from fairseq_plugins.shared.files import missing_folder
from fairseq_plugins.shared.languages import split_pair

NAME = "spec-dec-serve"
KEY_VARIABLE = "SPEC_DEC_API_KEY"


def get_parser() -> CommandParser:
    """Return the parser of the command."""
    from fairseq_plugins.api.service import MAX_BEAM, MAX_SENTENCES
    from fairseq_plugins.decoding import methods
    from fairseq_plugins.serving.settings import Settings

    default = Settings()
    description = (
        "Serve translations over HTTP, with LibreTranslate's interface, one of our own (/docs), and a page to try it.\n"
        "Requests join and leave a running batch, and each has the output that it has alone (docs/serving.md)."
    )
    parser = CommandParser(NAME, description, f"{NAME} checkpoints/multi30k.en-de --port 5000")
    model = parser.add_argument_group("models").add_argument
    named = "folder of a model, as for spec-dec-translate; SOURCE-TARGET=FOLDER names its languages"
    model("models", nargs="+", metavar="MODEL", help=named)
    decoders = f"{', '.join(methods.DECODERS)} (default: gad with a drafter, greedy without)"
    model("--decoder", choices=methods.DECODERS, metavar="NAME", help=decoders)
    beam = "beam of requests that name none (default: 1; 5 with --decoder fast-beam and beam)"
    model("--beam", type=positive, metavar="N", help=beam)
    largest = f"largest beam of a request (default: {MAX_BEAM})"
    model("--max-beam", type=positive, default=MAX_BEAM, metavar="N", help=largest)
    other = "any other option of load, such as max_len_b=100; repeatable (docs/options.md)"
    model("--set", action="append", default=[], metavar="NAME=VALUE", help=other)
    model("--device", metavar="NAME", help="cpu, cuda or cuda:N (default: a GPU if there is one)")
    model("--threads", type=positive, metavar="N", help="threads on the CPU (default: torch's)")
    server = parser.add_argument_group("server").add_argument
    address = "address to listen at (default: 127.0.0.1, this machine)"
    server("--host", default="127.0.0.1", metavar="ADDRESS", help=address)
    server("--port", type=positive, default=5000, metavar="N", help="port (default: 5000, as LibreTranslate)")
    keys = "key that requests must have, as api_key or bearer token; repeatable "
    keys += f"(default: none, or those in the variable {KEY_VARIABLE})"
    server("--api-key", action="append", default=[], metavar="KEY", help=keys)
    origin = "web site whose pages may use the server from a browser, or *; repeatable"
    server("--allow-origin", action="append", default=[], metavar="ORIGIN", help=origin)
    grace = "seconds to finish running requests after SIGTERM (default: 30)"
    server("--grace", type=not_negative, default=30.0, metavar="SECONDS", help=grace)
    limits = parser.add_argument_group("limits").add_argument
    characters = f"characters of a request (default: {default.max_characters})"
    limits("--max-characters", type=positive, default=default.max_characters, metavar="N", help=characters)
    waiting = f"unfinished sentences of a model; with more, requests get 503 at once (default: {MAX_SENTENCES})"
    limits("--max-waiting", type=positive, default=MAX_SENTENCES, metavar="N", help=waiting)
    seconds = f"seconds for a request to arrive, and again for its translation (default: {default.timeout:.0f})"
    limits("--timeout", type=not_negative, default=default.timeout, metavar="SECONDS", help=seconds)
    return parser


def make_models(args: argparse.Namespace) -> list[Any]:
    """Return the models of a command line, not loaded yet; raise ConfigurationError for a wrong name or number."""
    from fairseq_plugins.api.options import ServiceArguments, check_arguments
    from fairseq_plugins.serving.models import ServedModel

    check_arguments({"threads": args.threads}, ServiceArguments)
    options: dict[str, Any] = {**named_values(args.set)}
    options |= {name: vars(args)[name] for name in ("decoder", "device") if vars(args)[name] is not None}
    models = []
    for given in args.models:
        languages, folder = None, given
        if "=" in given and not Path(given).exists():
            pair, _, folder = given.partition("=")
            languages = split_pair(pair, Path(folder))
            if languages is None:
                remedy = f"give SOURCE-TARGET=FOLDER, such as en-de={folder}, or pt-BR:en={folder}"
                raise ConfigurationError("MODEL", given, remedy=remedy)
        models.append(
            ServedModel(
                folder,
                languages,
                options,
                args.beam,
                args.max_waiting,
                max(args.max_beam, args.beam or 1),
                args.threads,
            )
        )
    return models


def check_address(host: str, port: int) -> None:
    """Raise ConfigurationError for an address that cannot be listened at, before anything is loaded."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((address[0], port, *address[2:]))  # getaddrinfo cuts ports above 65535
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError("--port", port, f"{host} cannot be listened at ({reason})", "give another") from error


def run(argv: Sequence[str]) -> None:
    """Parse arguments, and serve until a signal."""
    parser = get_parser()
    spell_as(spelling_of(parser))
    args = parser.parse_args(argv)
    try:
        with without_garbage_collection():
            from fairseq_plugins.serving.process import Process
    except ImportError as error:
        problem = "is not installed"
        raise ConfigurationError(error.name, None, problem, "pip install 'fairseq-spec-dec[serve]'") from error
    from fairseq_plugins.serving.settings import Settings

    keys = args.api_key or os.environ.get(KEY_VARIABLE, "").split()
    settings = Settings(
        api_keys=frozenset(keys),
        max_characters=args.max_characters,
        timeout=args.timeout,
        origins=tuple(args.allow_origin),
    )
    models = make_models(args)
    for model in models:
        if not Path(model.folder).exists():
            raise missing_folder("folder", Path(model.folder), "one with verifier.pt and dictionaries")
    check_address(args.host, args.port)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING, force=True)
    logging.getLogger(NAME).setLevel(logging.INFO)
    logging.getLogger("uvicorn.error").setLevel(logging.INFO)
    process = Process(models, settings, args.host, args.port, args.grace)
    process.run()
    if process.should_exit:  # after a signal that the shell has it ignore, as SIGINT of commands with &
        return
    unloaded = ConfigurationError("MODEL", " ".join(args.models), "cannot be loaded", "see the errors above")
    if all(model.is_wrong for model in models):
        raise unloaded
    say(f"{NAME}: error: {unloaded}")
    sys.exit(FAILED)  # out of memory may end: another status, after which systemd starts the server again


main = partial(run_command, NAME, run)


if __name__ == "__main__":
    sys.exit(main())
