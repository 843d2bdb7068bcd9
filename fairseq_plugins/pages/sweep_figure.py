"""The figure of a sweep: quality over speed."""

from collections.abc import Mapping
from typing import Any

from fairseq_plugins.pages.figures import GREY, LINES, draw, series_style


def quality_figure(sweep: Mapping[str, Any]) -> bytes:
    """Draw BLEU over sentences per second for the contents of `sweep.json`, with the Pareto front as a line."""
    series: dict[str, list[tuple[float, float]]] = {}
    front = []
    several = len({record["block_size"] for record in sweep["cells"]}) > 1
    for record in sweep["cells"]:
        is_exact = record["top_beta"] == 1 or record["tau"] == 0
        name = "exact" if is_exact else f"top-{record['top_beta']}"
        point = (record["sentences_per_second"], record["bleu"])
        series.setdefault(name, []).append(point)
        if record["pareto_front"]:
            # With the series' name: settings of two series may be equal otherwise.
            settings = [f"k={record['block_size']}"] * several + [f"τ={record['tau']:g}"] * (not is_exact)
            front.append((*point, ", ".join([name, *settings])))
    front.sort()

    def paint(axes: Any) -> None:
        xs, ys = [x for x, _, _ in front], [y for _, y, _ in front]
        axes.plot(xs, ys, color=GREY, alpha=0.35, linewidth=7, label="Pareto front", solid_capstyle="round", zorder=1)
        for index, (label, points) in enumerate(series.items()):
            style = series_style(index)
            style.pop("linestyle")
            axes.scatter(*zip(*points, strict=True), **style, s=55, edgecolors="white", linewidths=0.6, label=label)
        for number, (x, y, text) in enumerate(front):
            # Alternately above and below, and towards the middle: neighbours on the front are often close.
            is_right = 2 * x > xs[0] + xs[-1]
            offset = (-6 if is_right else 6, 7 if number % 2 == 0 else -17)
            side = "right" if is_right else "left"
            axes.annotate(text, (x, y), xytext=offset, textcoords="offset points", ha=side, fontsize=11)
        for index, record in enumerate(sweep["baselines"].values()):
            label = f"{record['baseline']}: {record['bleu']:.2f}"
            axes.axhline(record["bleu"], color=GREY, linewidth=1.2, linestyle=LINES[1 + index % 3], label=label)
        axes.set(xlabel="sentences per second", ylabel="BLEU")
        axes.margins(0.12, 0.15)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)

    return draw(paint, height=5.4)
