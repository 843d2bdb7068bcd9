"""Metrics for Prometheus."""

from collections.abc import Iterator
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from fairseq_plugins.api.results import CallStatistics
from fairseq_plugins.serving.models import Registry

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """Counts of a server with the models of a registry; `collectors` is what Prometheus reads."""

    def __init__(self, registry: Registry) -> None:
        self.collectors = CollectorRegistry()
        counter = partial(Counter, registry=self.collectors)
        histogram = partial(Histogram, registry=self.collectors, buckets=_SECONDS)
        self.requests = counter("spec_dec_requests", "answered requests", ["path", "status"])
        self.seconds = histogram("spec_dec_request_seconds", "time of a request", ["path"])
        self.sentences = counter("spec_dec_sentences", "translated sentences", ["model"])
        self.tokens = counter("spec_dec_tokens", "tokens of translations, EOS included", ["model"])
        self.iterations = counter("spec_dec_iterations", "iterations of sentences", ["model"])
        self.collectors.register(_Models(registry))

    def count(self, model: str, total: CallStatistics) -> None:
        """Count the sentences of a request."""
        self.sentences.labels(model).inc(total.sentences)
        self.tokens.labels(model).inc(total.tokens)
        self.iterations.labels(model).inc(total.iterations)


class _Models(Collector):
    """The state of the models when they are asked for."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[GaugeMetricFamily]:
        unfinished = GaugeMetricFamily("spec_dec_unfinished_sentences", "waiting or decoded now", labels=["model"])
        ready = GaugeMetricFamily("spec_dec_model_ready", "1 if the model can translate", labels=["model"])
        for name, model in self._registry.named().items():
            unfinished.add_metric([name], model.sentences)
            ready.add_metric([name], model.state == "ready")
        yield unfinished
        yield ready
