"""`gpssm compare`: which method forecasts the user's recording best, in words, a table and a picture."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from gpssm import plots
from gpssm.cli.files import check_target, read_recordings, split
from gpssm.cli.options import CompareOptions
from gpssm.cli.output import check_picture, print_json, print_line, save_figure
from gpssm.parallel.backtest import METHODS, Backtest, backtest
from gpssm.plumbing.messages import say
from gpssm.training.progress import StatusLines

MAX_OUTPUTS, MAX_METHODS = 4, 4
"""How many are drawn of each."""
PICTURE = Path("compare.png")


def run(options: CompareOptions) -> None:
    """Read, forecast with every method, print and draw."""
    plt.switch_backend("Agg")
    picture = options.out or PICTURE
    check_picture(picture)
    check_target(picture, *options.data)
    found = _compared(options, read_recordings(options))
    _ = found.best  # says it if there is none
    _draw(found, picture)
    if options.as_json:
        print_json(
            {
                "best": found.best,
                "verdict": found.verdict,
                "horizon": found.horizon,
                "origins": list(found.origins),
                "ranking": [score.as_dict(found.data.output_names) for score in found.scores],
                "rows": found.rows,
                "failures": found.failures,
                "picture": str(picture),
            }
        )
    else:
        print_line(f"{found}\npicture: {picture}")


def _compared(options: CompareOptions, data: Any) -> Backtest:
    names = ("horizon", "origins", "refit", "max_seconds", "processes", "seed")
    how = {name: getattr(options, name) for name in names}
    methods = split(options.methods) or list(METHODS)
    if options.quiet:
        return backtest(methods, data, **how)
    with StatusLines(f"comparing {', '.join(methods)}") as lines:

        def watch(name: str, done: int, total: int) -> None:
            lines.update(f"{done} of {total} fits done, the last one of {name}")

        return backtest(methods, data, watch=watch, **how)


def _draw(found: Backtest, picture: Path) -> None:
    """Every output with the forecasts of the best methods, one below the other, over what was observed."""
    outputs = found.data.output_names[:MAX_OUTPUTS]
    shown = [score for score in found.scores if np.isfinite(score.nrmse)][:MAX_METHODS]
    first = found.origins[0]
    past, future = found.data.outputs[max(0, first - found.horizon) : first], found.data.outputs[first:]
    with plt.rc_context({"axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 10}):
        size = (12, 1.0 + 2.3 * len(outputs) * len(shown))
        figure, axes = plt.subplots(len(outputs) * len(shown), 1, figsize=size, layout="constrained", squeeze=False)
        for row, (j, score) in enumerate((j, score) for j in range(len(outputs)) for score in shown):
            ax = axes[row, 0]
            paths = found.forecast(score.method)
            plots.forecast(paths, past=past, future=future, channel=j, ax=ax)
            for start in found.origins[1:]:
                ax.axvline(plots.border(paths.times, start - first), color=plots.GREY, lw=0.8, ls=":")
            if row:
                ax.get_legend().remove()
            else:
                ax.legend(frameon=False, fontsize=8, ncols=5, loc="lower right", bbox_to_anchor=(1, 1))
            last = row == len(axes) - 1
            if not last or paths.times is None:
                ax.set_xlabel("samples after the first forecast starts" if last else "")
            share = f"{100 * score.coverage90[j]:.0f}% inside the 90% band"
            ax.set_title(f"{plots.literal(score.method)}: fit {score.fit[j]:.1f}%, {share}", loc="left")
        left = [(len(found.data.output_names) - len(outputs), "output"), (len(found.scores) - len(shown), "method")]
        more = [f"{count} more {what}(s) not shown" for count, what in left if count > 0]
        left_out = f" ({', '.join(more)})" if more else ""
        figure.suptitle(plots.literal(found.verdict) + left_out, fontsize=11)
        save_figure(figure, picture, 110)
        plt.close(figure)
    for name, why in found.failures.items():
        say(f"{name} has failed: {why}")
