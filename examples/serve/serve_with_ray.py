"""Serve a model on a Ray cluster: each replica has its own server's application, and Ray Serve balances between them.

    serve run examples.serve.serve_with_ray:app folder=checkpoints/multi30k.en-de replicas=2

languages=SOURCE-TARGET is for a multilingual model, such as languages=eng_Latn-deu_Latn for NLLB.
All machines must see the folder under the same path. The interface is that of spec-dec-serve, at Ray's port 8000.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from fairseq_plugins.serving.app import make_app
from fairseq_plugins.serving.models import ServedModel
from fairseq_plugins.serving.settings import Settings
from fairseq_plugins.shared.languages import split_pair


def application(folder: str, threads: int, languages: tuple[str, str] | None = None) -> Any:
    """Return a replica's application, whose model is loaded."""
    model = ServedModel(folder, languages, threads=threads)
    model.load()
    if model.state != "ready":
        raise RuntimeError(f"{folder} {model.problem}")  # Ray starts the replica again
    return make_app([model], Settings())


def app(arguments: dict[str, str]) -> Any:
    """Return the deployment, for `serve run`."""
    from ray import serve

    threads = int(arguments.get("threads", "2"))
    folder = Path(arguments["folder"]).resolve()
    pair = arguments.get("languages", "")
    languages = split_pair(pair, folder)
    if pair and languages is None:
        raise ValueError(f"languages={pair}: give SOURCE-TARGET, or SOURCE:TARGET")

    def build() -> Callable[..., Awaitable[None]]:
        return application(str(folder), threads, languages)

    @serve.deployment(num_replicas=int(arguments.get("replicas", "1")), ray_actor_options={"num_cpus": threads})
    @serve.ingress(build)
    class Translation:
        """A replica."""

    return Translation.bind()
