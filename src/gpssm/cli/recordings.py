"""`gpssm reproduce recordings`: published recordings with the methods that were asked for, as fits of one plan."""

from functools import partial
from pathlib import Path

from rich.table import Table

from gpssm.cli.output import choose, print_json, print_line, table_console
from gpssm.cli.reproduce import work_off
from gpssm.datasets import benchmark
from gpssm.experiments import recordings as experiment
from gpssm.parallel import pool
from gpssm.reproduction.chapters.recordings import rows
from gpssm.reproduction.plan import group, plan
from gpssm.reproduction.store import plain


def run(
    dataset: list[str] | None,
    method: list[str] | None,
    seeds: int,
    processes: int | None,
    retry_failed: bool,
    as_json: bool,
    quiet: bool,
    out: Path,
) -> None:
    """Do what is missing of the fits that were asked for, then print the table."""
    datasets = _chosen("dataset", dataset or ["all"], experiment.DATASETS)
    methods = _chosen("method", method or list(experiment.DEFAULT), experiment.METHODS)
    for name in datasets:
        benchmark(name)  # downloaded once, and a missing file is told of before anything is fitted
    jobs = plan(seeds, ",".join(f"recordings:{name}" for name in methods))
    jobs = [job for job in jobs if job.task.dataset in datasets]
    store, written = work_off(jobs, out, False, partial(pool.run, processes=processes), retry_failed, quiet)
    found = rows(group((job, store.read(job)) for job in jobs))
    # The order of the table is that of the question.
    found.sort(key=lambda row: (datasets.index(row.dataset), methods.index(row.method)))
    summary = experiment.summary(found)
    if as_json:
        print_json(
            {
                "experiment": "recordings",
                "rows": [plain(row.as_dict()) for row in found],
                "summary": [each.as_dict() for each in summary],
                "published": {name: [each._asdict() for each in experiment.published(name)] for name in datasets},
                "report": str(written),
            }
        )
    else:
        _print(found, summary, datasets)
        print_line(f"report: {written}")


def _chosen(name: str, asked: list[str], known: tuple[str, ...]) -> list[str]:
    return list(dict.fromkeys(found for value in asked for found in choose(name, value, list(known))))


def _print(found: list[experiment.Row], summary: list[experiment.Summary], datasets: list[str]) -> None:
    console = table_console(160)
    table = Table(title="Recordings: the test part forecast at once, mean over seeds", caption=_CAPTION)
    for column in ("data set", "method", "NRMSE", "RMSE", "in 90% band", "CRPS / sd", "NLPD", "CPU s", "seeds"):
        left = column in ("data set", "method")
        table.add_column(column, justify="left" if left else "right", no_wrap=True)
    for dataset in datasets:
        for row in (row for row in found if row.dataset == dataset):
            table.add_row(
                dataset, row.method, f"{row.nrmse:.4f}", _rmse(row), f"{row.coverage90:.2f}", f"{row.crps:.4f}",
                f"{row.nlpd:.3f}", f"{row.cpu_seconds:.1f}", f"{row.seeds}, {row.failed} failed" if row.failed
                else str(row.seeds),
            )  # fmt: skip
        for each in experiment.best_published(dataset):
            name = f"{each.kind}, {each.system}" if each.system else each.kind
            table.add_row(dataset, f"{name}, published", "", f"{each.rmse:g} {each.unit}".strip(), style="dim")
        table.add_section()
    console.print(table)
    over = Table(title=f"Every method over {len(datasets)} data set(s)")
    for column in ("method", "data sets", "NRMSE relative to ARX", "first on", "behind the better linear one on"):
        over.add_column(column, justify="left" if column == "method" else "right")
    for total in summary:
        relative = "" if total.relative_to_arx is None else f"{total.relative_to_arx:.3f}"
        behind = "" if total.behind_linear is None else str(total.behind_linear)
        over.add_row(total.method, str(total.datasets), relative, str(total.first), behind)
    console.print(over)


def _rmse(row: experiment.Row) -> str:
    """A line for every output."""
    values = row.rmse if isinstance(row.rmse, list) else [row.rmse]
    spreads = row.rmse_sd if isinstance(row.rmse_sd, list) else [row.rmse_sd]
    return "\n".join(f"{value:.4g} ± {spread:.1g}" for value, spread in zip(values, spreads, strict=True))


_CAPTION = "RMSE in the units of the recording, ± standard deviation over seeds; NLPD in these units, too"
