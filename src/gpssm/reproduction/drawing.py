"""Pictures from results: panels side by side, the same bytes for the same numbers."""

import io
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from gpssm.reproduction.pages import Figure

Item = TypeVar("Item")
BAND = 1.645  # standard deviations to either side of a 90% band


def panels(
    name: str,
    caption: str,
    items: Sequence[Item | None],
    columns: int,
    size: tuple[float, float],
    draw: Callable[[Axes, Item], None],
) -> tuple[Figure, ...]:
    """One panel for every item, row by row; a place without an item stays empty. No figure without items."""
    if not any(item is not None for item in items):
        return ()
    rows = -(-len(items) // columns)
    canvas = Canvas(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    axes = canvas.subplots(rows, columns, squeeze=False)
    for ax, item in zip(axes.flat, [*items, *[None] * (rows * columns - len(items))], strict=True):
        if item is None:
            ax.axis("off")
        else:
            draw(ax, item)
            ax.tick_params(labelsize=7)
            ax.title.set_fontsize(8)
    buffer = io.BytesIO()
    canvas.savefig(buffer, format="png", dpi=100, metadata={"Software": None})
    return (Figure(name, caption, buffer.getvalue()),)


def forecast(ax: Axes, title: str, curves: dict[str, Any], step: int = 1) -> None:
    """What came (`truth`, black) and its forecast (`mean`) with a band (`low`, `high`), every `step` samples."""
    mean, low, high, truth = (np.array(curves[name], float) for name in ("mean", "low", "high", "truth"))
    time = step * np.arange(len(truth))
    ax.fill_between(time, low, high, color="C0", alpha=0.25, lw=0)
    ax.plot(time, mean, color="C0", lw=1.0)
    ax.plot(time, truth, color="k", lw=0.7)
    margin = 0.5 * (truth.max() - truth.min())
    ax.set(title=title, ylim=(truth.min() - margin, truth.max() + margin))
