"""`gpssm reproduce nascar`: the table, its results file and the figure of the track."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
from rich.table import Table

from gpssm.cli.output import choose, make_directory, print_json, save_figure, showing, table_console
from gpssm.experiments import nascar as experiment
from gpssm.plumbing.serialization import write_atomically


def run(method: str, seeds: int, as_json: bool, quiet: bool, out: Path | None) -> None:
    """Learn and drive on for every seed, and report."""
    methods = choose("method", method, list(experiment.METHODS))
    make_directory(out)
    rows: list[experiment.Row] = []
    scores: list[experiment.Score] = []
    shown: list[experiment.Run] = []
    with showing("starting", quiet) as status:
        for m in methods:
            cell = []
            for seed in range(seeds):
                status.update(f"{m}, seed {seed} of {seeds}")
                run_, score = experiment.run(m, seed)
                cell.append(score)
                if seed == 0:
                    shown.append(run_)
            scores.extend(cell)
            rows.append(experiment.summarise(cell))
    result = {"experiment": "nascar", "rows": [row.as_dict() for row in rows]}
    if out is not None:
        fits = [asdict(score) for score in scores]
        write_atomically(out / "results.json", json.dumps(result | {"fits": fits}, indent=1).encode())
        _figure(methods, shown, out / "nascar.png")
    if as_json:
        print_json(result)
    else:
        _print(rows)


def _print(rows: list[experiment.Row]) -> None:
    table = Table(title=f"NASCAR: one pass over {experiment.LENGTH} samples, median (quartiles) over seeds")
    steps = [str(h) for h in experiment.HORIZONS]
    columns = [f"RMSE, {h} steps" for h in steps]
    for column in ("method", *columns, "filter RMSE", "in 90% band", "ms a sample"):
        table.add_column(column, justify="left" if column == "method" else "right", no_wrap=True)

    def cells(found: dict[str, tuple[float, float, float]]) -> list[str]:
        return [f"{found[h][1]:.2f} ({found[h][0]:.2f}, {found[h][2]:.2f})" for h in steps]

    for row in rows:
        table.add_row(
            row.method, *cells(row.forecast_rmse), f"{row.filter_rmse:.3f}", f"{row.coverage90:.2f}",
            f"{row.milliseconds:.2f}",
        )  # fmt: skip
    table.add_row("oracle: true dynamics, true state", *cells(rows[0].oracle_rmse))
    table.add_row("least squares of each sample", "", "", "", f"{rows[0].least_squares_rmse:.3f}")
    table.add_section()
    for method, printed in experiment.PAPER.items():
        table.add_row(f"{method}, printed in the paper", "", "", f"{printed:.2f}", style="dim")
    table_console(130).print(table)


def _figure(methods: list[str], shown: list[experiment.Run], path: Path) -> None:
    """The track as it was filtered, the next 100 steps as forecast, and the learned flow."""
    import matplotlib.pyplot as plt

    plt.switch_backend("Agg")
    figure, axes = plt.subplots(len(shown), 2, figsize=(12, 4 * len(shown)), squeeze=False, layout="constrained")
    for row, method, run_ in zip(axes, methods, shown, strict=True):
        states = run_.data.series.states
        assert states is not None
        learned, to_come = states[: experiment.LENGTH], states[experiment.LENGTH :][:100]
        row[0].plot(*learned.T, color="k", lw=0.6, label="true")
        row[0].plot(*run_.filtered.T, color="C0", lw=0.6, label="filtered")
        grid = np.stack(
            np.meshgrid(np.linspace(*_range(learned[:, 0]), 22), np.linspace(*_range(learned[:, 1]), 14)), -1
        )
        at = grid.reshape(-1, 2)
        mean, _ = run_.stream.transition(at)
        row[0].quiver(*at.T, *(mean - at).T, color="C2", alpha=0.6, width=0.002, label="learned flow")
        row[0].set_title(f"{method}: the track in one pass", fontsize=9)
        row[0].legend(fontsize=7, loc="upper right")
        for path_ in run_.forecast.states[:60, :100]:
            row[1].plot(*path_.T, color="C0", alpha=0.12, lw=0.7)
        row[1].plot(*np.median(run_.forecast.states[:, :100], axis=0).T, color="C0", lw=1.6, label="median forecast")
        row[1].plot(*to_come.T, color="k", lw=1.2, label="true")
        row[1].set_title("the next 100 steps", fontsize=9)
        row[1].legend(fontsize=7, loc="upper right")
        row[1].set_xlim(row[0].get_xlim())
        row[1].set_ylim(row[0].get_ylim())
    save_figure(figure, path, dpi=110)
    plt.close(figure)


def _range(values: np.ndarray) -> tuple[float, float]:
    low, high = float(np.min(values)), float(np.max(values))
    margin = 0.1 * (high - low)
    return low - margin, high + margin
