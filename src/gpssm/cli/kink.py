"""`gpssm reproduce kink`: the table, its results file and its figure."""

import json
from itertools import product
from pathlib import Path
from typing import Any, get_args

from rich.table import Table

from gpssm.cli.output import choose, fitting, make_directory, print_json, save_figure, showing, table_console
from gpssm.errors import InvalidInput
from gpssm.experiments import kink as experiment
from gpssm.online.stream import Stream
from gpssm.plumbing.serialization import write_atomically
from gpssm.posteriors.posterior import Posterior

Learned = Posterior | Stream


def run(
    setting: str,
    obs_noise: list[float] | None,
    method: str,
    online: bool,
    length: int,
    seeds: int,
    as_json: bool,
    quiet: bool,
    out: Path | None,
) -> None:
    """Fit every cell that was asked for and report."""
    settings = choose("setting", setting, list(get_args(experiment.Setting)))
    methods = choose("method", method, list(experiment.ONLINE if online else experiment.METHODS))
    levels = obs_noise or list(experiment.OBS_NOISE)
    if any(level <= 0 for level in levels):
        raise InvalidInput(f"obs-noise: expected positive variances, got {levels}.")
    make_directory(out)
    rows: list[experiment.Row] = []
    scores: list[dict[str, Any]] = []
    shown: dict[tuple[str, str, float], Learned] = {}
    with showing("starting", quiet) as status:
        for s, level, m in product(settings, levels, methods):
            cell = []
            for seed in range(seeds):
                label = f"{m}, {s}, obs_noise {level:g}, seed {seed} of {seeds}"
                learned: Learned
                if online:
                    status.update(label)
                    learned, found = experiment.learn_live(m, s, level, seed, length)
                else:
                    with fitting(status, label) as watch:
                        learned, found = experiment.fit(m, s, level, seed, length, watch)
                shown.setdefault((m, s, level), learned)
                cell.append(found)
                scores.append({"method": m, "setting": s, "obs_noise": level, **found.__dict__})
            rows.append(experiment.summarise(m, s, level, cell))
    result = {"experiment": "kink", "rows": [row.as_dict() for row in rows]}
    if out is not None:
        write_atomically(
            out / "results.json", json.dumps(result | {"length": length, "fits": scores}, indent=1).encode()
        )
        _figure(shown, levels, out / "kink.png")
    if as_json:
        print_json(result)
    else:
        _print(rows, length if online else None)


def _print(rows: list[experiment.Row], samples: int | None) -> None:
    """The table; with a number of samples, the cost of one of them instead of that of a fit."""
    console = table_console(110)
    table = Table(title="Kink function, mean ± standard error over seeds", caption=_CAPTION)
    for column in (
        "setting",
        "obs noise",
        "method",
        "MSE",
        "log-likelihood",
        "Q",
        "steps",
        "fit s" if samples is None else "ms a sample",
    ):
        table.add_column(column, justify="left" if column in ("method", "setting") else "right", no_wrap=True)
    for setting, level in dict.fromkeys((row.setting, row.obs_noise) for row in rows):
        for row in rows:
            if (row.setting, row.obs_noise) == (setting, level):
                table.add_row(
                    row.setting, f"{level:g}", row.method,
                    f"{row.mse:.4f} ± {row.mse_se:.4f}", f"{row.log_likelihood:.3f} ± {row.log_likelihood_se:.3f}",
                    f"{row.q_learned:.4f}", f"{row.iterations:.0f}",
                    f"{row.fit_seconds:.1f}" if samples is None else f"{1e3 * row.fit_seconds / samples:.2f}",
                )  # fmt: skip
        for method, published in experiment.PUBLISHED_ONLINE.items():
            if samples is not None and setting == "sd" and level in published:
                mse, mse_se = published[level]
                name = f"{method}, by RGPSSM's authors"
                table.add_row(setting, f"{level:g}", name, f"{mse:.4f} ± {mse_se:.4f}", style="dim")
        for method, printed in experiment.PAPER.items():
            if setting == "sd" and level in printed:
                mse, mse_se, density, density_se = printed[level]
                cells = (f"{mse:.4f} ± {mse_se:.4f}", f"{density:.3f} ± {density_se:.3f}")
                table.add_row(setting, f"{level:g}", f"{method}, printed in the paper", *cells, style="dim")
        table.add_section()
    console.print(table)


_CAPTION = "The paper's numbers belong to setting sd (process noise 0.0025); variance is 0.05."


def _figure(shown: dict[tuple[str, str, float], Learned], levels: list[float], path: Path) -> None:
    import matplotlib.pyplot as plt

    from gpssm import plots
    from gpssm.datasets import kink_function

    plt.switch_backend("Agg")
    kinds = list(dict.fromkeys((m, s) for m, s, _ in shown))
    figure, axes = plt.subplots(
        len(kinds),
        len(levels),
        figsize=(4.2 * len(levels), 3.4 * len(kinds)),
        squeeze=False,
        layout="constrained",
        sharey=True,
    )
    for (method, setting, level), posterior in shown.items():
        ax = axes[kinds.index((method, setting))][levels.index(level)]
        plots.transition(posterior, truth=kink_function, span=(-3.15, 1.15), ax=ax)
        ax.set_title(f"{method}, {setting}, obs noise {level:g}", fontsize=9)
    save_figure(figure, path, dpi=120)
    plt.close(figure)
