"""The figure of a sweep: quality over speed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.pages import figures


def read_sweep(file: str) -> dict[str, Any]:
    """Read the `sweep.json` of `spec-dec-sweep`.

    Raises:
        ConfigurationError: if it is missing or another file.
    """
    try:
        sweep = json.loads(Path(file).read_bytes())
        keys = sweep["cells"][0].keys() & sweep["baselines"]["greedy"].keys()
    except OSError as error:
        raise ConfigurationError(f"--sweep {file}: {error.strerror}; give the sweep.json of spec-dec-sweep") from error
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"--sweep {file}: not written by spec-dec-sweep; give its sweep.json") from error
    if "bleu" not in keys:
        raise ConfigurationError(f"--sweep {file}: not written by spec-dec-sweep; give its sweep.json")
    return sweep


def quality_figure(sweep: Mapping[str, Any], dark: bool = False) -> bytes:
    """Draw BLEU over sentences per second as PNG, from the contents of `sweep.json`."""
    series: dict[str, list[tuple[float, float]]] = {}
    front = []
    several = len({record["block_size"] for record in sweep["cells"]}) > 1
    for record in sweep["cells"]:
        is_exact = record["top_beta"] == 1 or record["tau"] == 0
        name = "exact" if is_exact else f"top-{record['top_beta']}"
        point = (record["sentences_per_second"], record["bleu"])
        series.setdefault(name, []).append(point)
        if record["pareto_speed"]:
            # With the series' name: settings of two series may be equal otherwise.
            settings = [f"k={record['block_size']}"] * several + [f"τ={record['tau']:g}"] * (not is_exact)
            front.append((*point, ", ".join([name, *settings])))
    lines = {record["baseline"]: record["bleu"] for record in sweep["baselines"].values()}
    return figures.quality_against_speed(series, lines, front, "sentences per second", dark)
