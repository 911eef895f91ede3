"""`gpssm reproduce convergence`: the table, its results file and its figure."""

import json
from itertools import product
from pathlib import Path
from typing import get_args

import numpy as np
from rich.table import Table

from gpssm.cli.output import choose, fitting, make_directory, print_json, save_figure, showing, table_console
from gpssm.experiments import convergence as experiment
from gpssm.experiments.kink import Setting
from gpssm.plumbing.serialization import write_atomically


def run(setting: str, method: str, steps: int, seeds: int, as_json: bool, quiet: bool, out: Path | None) -> None:
    """Fit every curve that was asked for and report."""
    settings = choose("setting", setting, list(get_args(Setting)))
    methods = choose("method", method, list(experiment.METHODS))
    make_directory(out)
    curves: list[experiment.Curve] = []
    with showing("starting", quiet) as status:
        for s, m, seed in product(settings, methods, range(seeds)):
            label = f"{m}, {s}, seed {seed} of {seeds}"
            with fitting(status, label) as watch:
                curves.append(experiment.fit(m, s, seed, steps, watch))
    rows = experiment.summarise(curves)
    result = {"experiment": "convergence", "rows": rows}
    if out is not None:
        kept = result | {"curves": [curve.as_dict() for curve in curves]}
        write_atomically(out / "results.json", json.dumps(kept, indent=1).encode())
        _figure(curves, out / "convergence.png")
    if as_json:
        print_json(result)
        return
    table = Table(title=f"Kink function, observation noise {experiment.OBS_NOISE:g}, {steps} steps")
    for column in ("setting", "method", "variational parameters", "ms per iteration", "MSE"):
        table.add_column(column, justify="left" if column in ("method", "setting") else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["setting"], row["method"], f"{row['variational_parameters']:,}",
            f"{1e3 * row['seconds_per_iteration']:.1f}", f"{row['mse']:.4f} ± {row['mse_sd']:.4f}",
        )  # fmt: skip
    table_console(110).print(table)


def _figure(curves: list[experiment.Curve], path: Path) -> None:
    """Median over seeds and the range between them, against iterations and against seconds."""
    import matplotlib.pyplot as plt

    plt.switch_backend("Agg")
    settings = list(dict.fromkeys(curve.setting for curve in curves))
    methods = list(dict.fromkeys(curve.method for curve in curves))
    figure, axes = plt.subplots(
        len(settings), 2, figsize=(11, 3.6 * len(settings)), squeeze=False, layout="constrained", sharey="row"
    )
    for row, setting in zip(axes, settings, strict=True):
        for method in methods:
            own = [c for c in curves if (c.method, c.setting) == (method, setting)]
            errors, color = np.array([c.mse for c in own]), f"C{methods.index(method)}"
            label = f"{method}: {own[0].variational_parameters:,} variational parameters"
            for ax, time in zip(row, (own[0].step, np.mean([c.seconds for c in own], axis=0)), strict=True):
                ax.fill_between(time, errors.min(axis=0), errors.max(axis=0), color=color, alpha=0.2, lw=0)
                ax.plot(time, np.median(errors, axis=0), color=color, label=label)
        row[0].set(yscale="log", ylabel="MSE of f", title=f"process noise: {setting}")
        row[0].legend(fontsize=7)
        row[1].set(yscale="log", xscale="log")
    axes[-1][0].set_xlabel("iteration")
    axes[-1][1].set_xlabel("seconds after compilation")
    save_figure(figure, path, dpi=120)
    plt.close(figure)
