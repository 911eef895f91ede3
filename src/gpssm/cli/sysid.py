"""`gpssm reproduce sysid`: the table, its results file and its figure."""

import json
from dataclasses import asdict
from itertools import product
from pathlib import Path

from rich.table import Table

from gpssm import __version__
from gpssm.cli.output import choose, fitting, make_directory, print_json, save_figure, say, showing, table_console
from gpssm.datasets import Series, load
from gpssm.errors import InvalidInput
from gpssm.experiments import sysid as experiment
from gpssm.plumbing.serialization import write_atomically


def run(
    dataset: str, method: str, online: bool, seeds: int, missing: float, as_json: bool, quiet: bool, out: Path
) -> None:
    """Fit every cell that was asked for, or read it from an earlier run, and report."""
    datasets = choose("dataset", dataset, list(experiment.DATASETS))
    methods = choose("method", method, list(experiment.ONLINE if online else experiment.METHODS))
    if not 0 <= missing < 1:
        raise InvalidInput(f"missing: expected a share in [0, 1), got {missing!r}.")
    data = {name: load(name) for name in datasets}
    make_directory(out)
    fits = out / "fits"
    fits.mkdir(parents=True, exist_ok=True)
    rows: list[experiment.Row] = []
    cells: list[list[experiment.Score]] = []
    with showing("starting", quiet) as status:
        for d, m in product(datasets, methods):
            cell = []
            for seed in range(seeds):
                label = f"{m} on {d}, seed {seed} of {seeds}"

                path = fits / f"{d}-{m}-{seed}{f'-missing{missing:g}' if missing else ''}.json"
                score = _kept(path, m)
                if score is None:
                    with fitting(status, label) as watch:
                        score = experiment.fit(d, data[d], m, seed, missing, watch)
                    record = {"version": __version__, "settings": repr(experiment.build(m)), "score": asdict(score)}
                    write_atomically(path, json.dumps(record).encode())
                cell.append(score)
            cells.append(cell)
            rows.append(experiment.summarise(cell))
    result = {"experiment": "sysid", "rows": [row.as_dict() for row in rows]}
    write_atomically(out / "results.json", json.dumps(result, indent=1).encode())
    _figure(data, [cell[0] for cell in cells], out / "sysid.png")
    if as_json:
        print_json(result)
    else:
        _print(rows, datasets, online)


def _kept(path: Path, method: str) -> experiment.Score | None:
    """The score of an earlier run with the same version and settings."""
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text())
        if (record["version"], record["settings"]) != (__version__, repr(experiment.build(method))):
            return None
        return experiment.Score(**record["score"])
    except (KeyError, TypeError, ValueError, RecursionError):
        say(f"{path} is not a result, or a damaged one; its fit is done again.")
        return None


def _print(rows: list[experiment.Row], datasets: list[str], online: bool) -> None:
    console = table_console(120)
    for dataset in datasets:
        table = Table(title=f"{dataset}: second half forecast from the first, mean over seeds", caption=_CAPTION)
        for column in ("method", "free run RMSE", "blocks50 RMSE", "NLPD", "CRPS", "in 90% band", "fit s"):
            table.add_column(column, justify="left" if column == "method" else "right", no_wrap=True)
        for row in (row for row in rows if row.dataset == dataset):
            table.add_row(
                row.method, f"{row.free_run_rmse:.4f} ± {row.free_run_rmse_sd:.4f}", f"{row.blocks50_rmse:.4f}",
                f"{row.nlpd:.3f}", f"{row.crps:.4f}", f"{row.coverage90:.2f}", f"{row.fit_seconds:.1f}",
            )  # fmt: skip
        table.add_section()
        index = experiment.DATASETS.index(dataset)
        for method, printed in experiment.PUBLISHED_ONLINE.items() if online else ():
            table.add_row(f"{method}, published", f"{printed[index]:.3f}", style="dim")
        for method, cells in experiment.PAPER.items():
            mean, sd = cells[index]
            table.add_row(f"{method}, printed in the paper", f"{mean:.3f} ± {sd:.3f}", style="dim")
        console.print(table)


_CAPTION = "± standard deviation over seeds; NLPD, CRPS and the band are those of the free run"


def _figure(data: dict[str, Series], scores: list[experiment.Score], path: Path) -> None:
    """The prediction figure of the paper's supplement: test outputs and forecasts with their bands."""
    import matplotlib.pyplot as plt

    plt.switch_backend("Agg")
    methods = list(dict.fromkeys(score.method for score in scores))
    figure, axes = plt.subplots(
        len(data), len(methods), figsize=(5.2 * len(methods), 2.3 * len(data)), squeeze=False, layout="constrained"
    )
    for score in scores:
        ax = axes[list(data).index(score.dataset)][methods.index(score.method)]
        test = data[score.dataset].split(0.5)[1]
        time = range(len(score.mean))
        ax.fill_between(time, score.low, score.high, color="C0", alpha=0.25, lw=0, label="90% band")
        ax.plot(time, score.mean, color="C0", lw=1.2, label="forecast")
        ax.plot(time, test.outputs[:, 0], color="k", lw=0.8, label="recorded")
        spread = float(test.outputs.max() - test.outputs.min())
        ax.set_ylim(test.outputs.min() - 0.5 * spread, test.outputs.max() + 0.5 * spread)
        ax.set_title(f"{score.dataset}, {score.method}: RMSE {score.free_run_rmse:.3g}", fontsize=9)
        ax.set_ylabel(test.output_names[0], fontsize=8)
    axes[0][0].legend(fontsize=7, loc="upper right")
    for ax in axes[-1]:
        ax.set_xlabel("steps after the end of the training part")
    save_figure(figure, path, dpi=110)
    plt.close(figure)
