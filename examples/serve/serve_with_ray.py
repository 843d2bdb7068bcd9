"""Serve a model on a Ray cluster: each replica has its own server's application, and Ray Serve balances between them.

    pip install 'ray[serve]' '.[serve]'
    serve run examples.serve.serve_with_ray:app folder=checkpoints/multi30k.en-de replicas=2 threads=1

languages=SOURCE-TARGET is for a multilingual model, such as languages=eng_Latn-deu_Latn for NLLB. Keys of requests are
in the variable SPEC_DEC_API_KEY, separated by spaces. Ray starts a replica only where `threads` processors are free.
All machines must see the folder under the same path. The interface is that of spec-dec-serve, at Ray's port 8000.
"""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fairseq_plugins.api.service import MAX_SENTENCES
from fairseq_plugins.serving.app import make_app
from fairseq_plugins.serving.cli import KEY_VARIABLE
from fairseq_plugins.serving.models import ServedModel
from fairseq_plugins.serving.settings import Settings
from fairseq_plugins.shared.languages import split_pair


class Arguments(BaseModel, extra="forbid"):
    """The arguments of `serve run`."""

    folder: str
    replicas: int = 1
    threads: int = 2
    languages: str = ""


def application(
    folder: str, threads: int, languages: tuple[str, str] | None = None, settings: Settings | None = None
) -> Any:
    """Return a replica's application, whose model is loaded."""
    model = ServedModel(folder, languages, threads=threads)
    model.load()
    if model.state != "ready":
        raise RuntimeError(f"{folder} {model.problem}")  # Ray starts the replica again
    return make_app([model], settings or Settings())


def app(arguments: Arguments) -> Any:
    """Return the deployment, for `serve run`."""
    from ray import serve

    folder = Path(arguments.folder).resolve()
    pair, threads = arguments.languages, arguments.threads
    languages = split_pair(pair, folder)
    if pair and languages is None:
        raise ValueError(f"languages={pair}: give SOURCE-TARGET, or SOURCE:TARGET")
    settings = Settings(api_keys=frozenset(os.environ.get(KEY_VARIABLE, "").split()))

    def build() -> Callable[..., Awaitable[None]]:
        return application(str(folder), threads, languages, settings)

    @serve.deployment(
        num_replicas=arguments.replicas,
        ray_actor_options={"num_cpus": threads},
        max_ongoing_requests=MAX_SENTENCES,  # of a replica, which answers 503 itself; by default Ray sends five
    )
    @serve.ingress(build)
    class Translation:
        """A replica."""

    return Translation.bind()
