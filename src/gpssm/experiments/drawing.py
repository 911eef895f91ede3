"""Pictures from results: panels side by side, the same bytes for the same numbers."""

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from gpssm.experiments.pages import Figure

if TYPE_CHECKING:  # a fit does without matplotlib
    from matplotlib.axes import Axes as Axes
else:
    Axes = Any

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
    from matplotlib.figure import Figure as Canvas

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


def stacked(figures: Sequence[Figure]) -> bytes:
    """Several figures as one PNG, one below the other."""
    from matplotlib import image

    found = [image.imread(io.BytesIO(figure.png)) for figure in figures]
    width = max(each.shape[1] for each in found)
    wide = [np.pad(each, ((0, 0), (0, width - each.shape[1]), (0, 0)), constant_values=1.0) for each in found]
    buffer = io.BytesIO()
    image.imsave(buffer, np.concatenate(wide), format="png")
    return buffer.getvalue()


def band(ax: Axes, low: Any, high: Any, mean: Any, truth: Any, *, step: int = 1, width: float = 1.0) -> None:
    """A learned curve (blue, of that width) with its band, and the truth (black), every `step` samples."""
    time = step * np.arange(len(truth))
    ax.fill_between(time, low, high, color="C0", alpha=0.25, lw=0)
    ax.plot(time, mean, color="C0", lw=width)
    ax.plot(time, truth, color="k", lw=0.7)


def forecast(ax: Axes, title: str, curves: dict[str, Any], step: int = 1) -> None:
    """What was recorded (`truth`, black), its forecast (`mean`) and a band (`low`, `high`), every `step` samples."""
    mean, low, high, truth = (np.array(curves[name], float) for name in ("mean", "low", "high", "truth"))
    band(ax, low, high, mean, truth, step=step)
    margin = 0.5 * (truth.max() - truth.min())
    ax.set(title=title, ylim=(truth.min() - margin, truth.max() + margin))
