"""`gpssm reproduce car`: the supplement's two tables, their results file and their figure."""

import json
from itertools import product
from pathlib import Path
from typing import get_args

from rich.table import Table

from gpssm.cli.output import choose, fitting, make_directory, print_json, save_figure, showing, table_console
from gpssm.datasets import car
from gpssm.experiments import car as experiment
from gpssm.plumbing.serialization import write_atomically


def run(emission: str, method: str, seeds: int, as_json: bool, quiet: bool, out: Path | None) -> None:
    """Filter every cell that was asked for and report."""
    emissions = choose("emission", emission, list(get_args(experiment.Emission)))
    methods = choose("method", method, list(experiment.METHODS))
    make_directory(out)
    rows: list[experiment.Row] = []
    shown: dict[tuple[experiment.Emission, str], experiment.Track] = {}
    with showing("starting", quiet) as status:
        for e, m in product(emissions, methods):
            scores, seconds = [], []
            for seed in range(seeds):
                label = f"{m}, C {e}, seed {seed} of {seeds}"
                with fitting(status, label) as watch:
                    track, score = experiment.run(m, e, seed, watch)
                shown.setdefault((e, m), track)
                scores.append(score)
                seconds.append(track.seconds)
            rows.append(experiment.summarise(m, e, scores, seconds))
    result = {"experiment": "car", "rows": [row.as_dict() for row in rows]}
    if out is not None:
        write_atomically(out / "results.json", json.dumps(result, indent=1).encode())
        _figure(shown, out / "car.png")
    if as_json:
        print_json(result)
    else:
        _print(rows, emissions)


def _print(rows: list[experiment.Row], emissions: list[experiment.Emission]) -> None:
    console = table_console(150)
    names = experiment.slot_names()
    for emission in emissions:
        middle = "mean" if emission == "identity" else "median"
        table = Table(title=f"Car, C {emission}: RMSE of the filtered state, {middle} over seeds")
        for column in ("method", *names):
            table.add_column(column, justify="left" if column == "method" else "right", no_wrap=True)
        for row in (row for row in rows if row.emission == emission):
            shown = row.rmse if emission == "identity" else row.rmse_median
            table.add_row(row.method, *(f"{shown[name]:.4f}" for name in names))
        table.add_section()
        for method, cells in experiment.PAPER[emission].items():
            printed = ("/" if cell is None else f"{cell:.4f}" for cell in cells)
            table.add_row(f"{method}, printed in the paper", *printed, style="dim")
        console.print(table)


def _figure(shown: dict[tuple[experiment.Emission, str], experiment.Track], path: Path) -> None:
    """Velocity of the car: truth, observations where they are of the state itself, and what each method inferred."""
    import matplotlib.pyplot as plt

    plt.switch_backend("Agg")
    learned = [(key, track) for key, track in shown.items() if key[1] != "baseline"]
    if not learned:
        return
    figure, axes = plt.subplots(
        len(learned), 2, figsize=(13, 2.4 * len(learned)), squeeze=False, layout="constrained", sharex=True
    )
    for row, ((emission, method), track) in zip(axes, learned, strict=True):
        series = car(experiment.LENGTH, emission == "random", 0).series
        assert series.states is not None
        for ax, state, name in zip(row, (0, 2), ("position", "velocity"), strict=True):
            time = range(experiment.SLOTS[2][1])
            at = slice(0, len(time))
            if emission == "identity":
                ax.plot(time, series.outputs[at, state], ".", ms=2, color="0.6", label="observed")
            mean, std = track.mean[at, state], track.std[at, state]
            ax.fill_between(time, mean - 1.645 * std, mean + 1.645 * std, color="C0", alpha=0.25, lw=0)
            ax.plot(time, mean, color="C0", lw=1.2, label=method)
            ax.plot(time, series.states[at, state], color="k", lw=0.8, label="true")
            ax.set_title(f"{method}, C {emission}: {name}", fontsize=9)
    axes[0][0].legend(fontsize=7)
    for ax in axes[-1]:
        ax.set_xlabel("sample")
    save_figure(figure, path, dpi=110)
    plt.close(figure)
