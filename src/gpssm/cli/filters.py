"""`gpssm reproduce filters`: the table, its results file and its figure."""

import json
from itertools import product
from pathlib import Path
from typing import Any

from rich.table import Table

from gpssm.cli.output import choose, fitting, make_directory, print_json, save_figure, showing, table_console
from gpssm.experiments import filters as experiment
from gpssm.experiments.kink import OBS_NOISE
from gpssm.plumbing.serialization import write_atomically


def run(system: str, seeds: int, as_json: bool, quiet: bool, out: Path | None) -> None:
    """Run every filter on the systems that were asked for and report."""
    systems = choose("system", system, list(experiment.SYSTEMS))
    make_directory(out)
    runs: list[experiment.Run] = []
    with showing("starting", quiet) as status:
        if "kink" in systems:
            for level, seed in product(OBS_NOISE, range(seeds)):
                with fitting(status, f"kink, obs_noise {level:g}, seed {seed} of {seeds}") as watch:
                    runs += experiment.kink_runs(level, seed, watch)
        if "lorenz96" in systems:
            for seed in range(seeds):
                status.update(f"Lorenz-96, seed {seed} of {seeds}")
                runs += experiment.lorenz96_runs(seed)
    rows = experiment.summarise(runs)
    result = {"experiment": "filters", "rows": rows}
    if out is not None:
        kept = result | {"runs": [one.as_dict() for one in runs]}
        write_atomically(out / "results.json", json.dumps(kept, indent=1).encode())
        _figure(rows, out / "filters.png")
    if as_json:
        print_json(result)
        return
    table = Table(title=f"Filters, mean ± standard error over {seeds} seed(s)")
    for column in ("system", "obs noise", "filter", "RMSE", "published", "log-likelihood / sample", "CPU s / 1000"):
        table.add_column(column, justify="left" if column in ("system", "filter") else "right", no_wrap=True)
    for row in rows:
        published = row["published_rmse"]
        table.add_row(
            row["system"], f"{row['obs_noise']:g}", row["filter"], f"{row['rmse']:.3f} ± {row['rmse_se']:.3f}",
            "" if published is None else f"{published:.2f}",
            f"{row['log_likelihood']:.3f} ± {row['log_likelihood_se']:.3f}", f"{row['seconds']:.3f}",
        )  # fmt: skip
    table_console(140).print(table)


def _figure(rows: list[dict[str, Any]], path: Path) -> None:
    """Error against time: one panel for every system, one mark for every filter, a bar where an error is published."""
    import matplotlib.pyplot as plt

    plt.switch_backend("Agg")
    panels = list(dict.fromkeys((row["system"], row["obs_noise"]) for row in rows))
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(4.6 * columns, 3.4 * lines), squeeze=False, layout="constrained", sharex=True
    )
    for ax in axes.flat[len(panels) :]:
        ax.axis("off")
    for (system, level), ax in zip(panels, axes.flat, strict=False):
        for row in rows:
            if (row["system"], row["obs_noise"]) == (system, level):
                ax.errorbar(row["seconds"], row["rmse"], row["rmse_se"], marker="o", ls="", label=row["filter"])
                if row["published_rmse"] is not None:
                    ax.plot(row["seconds"], row["published_rmse"], "k_", ms=12)
        ax.set(xscale="log", title=f"{system}, obs noise {level:g}")
        ax.set(xlabel="CPU seconds for 1000 samples", ylabel="RMSE of the state")
        ax.tick_params(labelbottom=True)
        if system == experiment.LORENZ:  # what works and what fails in one picture
            ticks = [0.2, 0.5, 1, 2, 5]
            ax.set_yscale("log")
            ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
            ax.set_yticks([], minor=True)
        else:
            ax.set_ylim(bottom=0.0)
        ax.legend(fontsize=6)
    save_figure(figure, path, dpi=120)
    plt.close(figure)
