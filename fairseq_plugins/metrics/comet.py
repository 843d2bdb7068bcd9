"""COMET, if it is installed and a model file is given."""

import contextlib
import os
import sys

from fairseq_plugins.metrics.sample import Sample, Score


def comet(sample: Sample) -> list[Score]:
    """Compute COMET (Rei et al. 2020) with a local model; nothing is downloaded."""
    path = sample.settings.comet_model
    assert path is not None and sample.sources is not None
    # The encoder's tokenizer is read from Hugging Face's cache; without this variable the network is asked first.
    os.environ["HF_HUB_OFFLINE"] = "1"
    from comet import load_from_checkpoint

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
