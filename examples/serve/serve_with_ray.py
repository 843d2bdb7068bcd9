"""Serve a model on a Ray cluster: each replica has its own server's application, and Ray Serve balances between them.

    serve run examples.serve.serve_with_ray:app folder=checkpoints/multi30k.en-de replicas=2

All machines must see the folder under the same path. The interface is that of spec-dec-serve, at Ray's port 8000.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from fairseq_plugins.serving.app import make_app
from fairseq_plugins.serving.models import ServedModel
from fairseq_plugins.serving.settings import Settings


def application(folder: str, threads: int) -> Any:
    """Return a replica's application, whose model is loaded."""
    model = ServedModel(folder, threads=threads)
    model.load()
    if model.state != "ready":
        raise RuntimeError(f"{folder} {model.problem}")  # Ray starts the replica again
    return make_app([model], Settings())


def app(arguments: dict[str, str]) -> Any:
    """Return the deployment, for `serve run`."""
    from ray import serve

    threads = int(arguments.get("threads", "2"))
    folder = str(Path(arguments["folder"]).resolve())

    def build() -> Callable[..., Awaitable[None]]:
        return application(folder, threads)

    @serve.deployment(num_replicas=int(arguments.get("replicas", "1")), ray_actor_options={"num_cpus": threads})
    @serve.ingress(build)
    class Translation:
        """A replica."""

    return Translation.bind()
