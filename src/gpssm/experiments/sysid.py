"""Table II of the paper and its figures: forecasts of five recorded systems.

The first half of every series is to learn from, the second half to test on; inputs are known, and an
output is read only after it was predicted. The paper says "50 steps ahead"; its code free-runs over
the whole second half. Both are reported (`gpssm.evaluation`), in the units of the recording.

Online, a method sees every sample of the first half once; then it free-runs over the second half, and once more
in blocks, between which it goes on learning. Its state is the output and its past, with as many of the last inputs.
"""

from collections.abc import Sequence
from itertools import product
from typing import Annotated, Any

import numpy as np

from gpssm import evaluation
from gpssm.datasets import Series, load
from gpssm.errors import InvalidInput
from gpssm.experiments.base import Cell, Group, Task, by, choose, spell
from gpssm.experiments.drawing import Axes, forecast, panels
from gpssm.experiments.estimates import Estimate, mean, means, spread, verdict
from gpssm.experiments.online import learn, learn_once
from gpssm.experiments.pages import Figure, Section, Table
from gpssm.experiments.tables import Column, as_printed, entry, method_name, printed, table, value
from gpssm.methods import registry
from gpssm.online.stream import Stream

NDArray = np.ndarray

SEEDS = 5
LEFT_OUT = "sysid: only the actuator and the gas furnace, and half of the methods"
OUT = "results/sysid"

DATASETS = ("actuator", "ballbeam", "drive", "dryer", "gas_furnace")
STATE_DIM, NUM_INDUCING, BLOCK = 4, 20, 50
METHODS = tuple(registry.METHODS)
ONLINE = tuple(registry.ONLINE)
_FAST_DATASETS = ("actuator", "gas_furnace")
_FAST_METHODS = ("EnVI", "vGPSSM", "DKF", "LinearGaussian", "ARX", "LastValue", "TrainingMean", "OEnVI", "RGPSSM")

# method -> RMSE and its standard deviation over five seeds, in the order of DATASETS
PAPER: dict[str, tuple[tuple[float, float], ...]] = {
    "DKF": ((1.204, 0.250), (0.144, 0.005), (0.735, 0.001), (1.465, 0.087), (5.589, 0.066)),
    "AD-EnKF": ((0.705, 0.117), (0.057, 0.006), (0.756, 0.114), (0.182, 0.053), (1.408, 0.090)),
    "vGPSSM": ((1.640, 0.011), (0.268, 0.414), (0.740, 0.010), (0.822, 0.002), (3.676, 0.145)),
    "CO-GPSSM": ((0.803, 0.011), (0.079, 0.018), (0.736, 0.007), (0.366, 0.146), (1.898, 0.157)),
    "PRSSM": ((0.691, 0.148), (0.074, 0.010), (0.647, 0.057), (0.174, 0.013), (1.503, 0.196)),
    "ODGPSSM": ((0.666, 0.074), (0.068, 0.006), (0.708, 0.052), (0.171, 0.011), (1.704, 0.560)),
    "VCDT": ((0.815, 0.012), (0.065, 0.005), (0.735, 0.005), (0.667, 0.266), (2.052, 0.163)),
    "EnVI": ((0.657, 0.095), (0.055, 0.002), (0.703, 0.050), (0.125, 0.017), (1.388, 0.123)),
}
# Online: means over five seeds, from the results that its authors have stored.
PUBLISHED_ONLINE = {"RGPSSM": (1.048, 0.046, 0.801, 0.103, 1.373)}
_PAPER_SEEDS = 5


def cells(fast: bool) -> list[Cell]:
    """Every method on every recording."""
    if fast:
        return [_cell(m, d) for d, m in product(_FAST_DATASETS, _FAST_METHODS)]
    return [_cell(m, d) for d, m in product(DATASETS, (*METHODS, *ONLINE))]


def select(
    dataset: Annotated[str, f"{', '.join(DATASETS)}, or all."] = "all",
    method: Annotated[str, f"{', '.join(METHODS)}, or all."] = "all",
    online: Annotated[bool, f"The methods that see every sample once: {', '.join(ONLINE)}."] = False,
    missing: Annotated[float, "Share of training outputs to delete at random."] = 0.0,
) -> list[Cell]:
    """The cells that the options ask for."""
    if not 0 <= missing < 1:
        raise InvalidInput(f"missing: expected a share in [0, 1), got {missing!r}.")
    methods = choose("method", method, ONLINE if online else METHODS)
    return [_cell(m, d, missing or None) for d, m in product(choose("dataset", dataset, DATASETS), methods)]


def _cell(method: str, dataset: str, missing: float | None = None) -> Cell:
    return Cell(method, dataset, "online" if method in ONLINE else "offline", varied=missing)


def configuration(task: Task) -> str:
    """The settings of the method, as text."""
    return spell(build(task.method))


def cost(task: Task) -> float:
    """Seconds that a fit takes, roughly."""
    return 70.0 if task.method in registry.SYSTEMS else 15.0


def build(method: str, state_dim: int = STATE_DIM) -> Any:
    """The method as it is compared: with its defaults."""
    if method in ONLINE:
        return registry.build_online(
            method, state_dim=state_dim, num_inducing=NUM_INDUCING, emission="observed", input_lags=STATE_DIM
        )
    return registry.build(method, **registry.applicable(method, state_dim=state_dim))


def run(task: Task) -> dict[str, Any]:
    """Learn from the first half of a recording, forecast the second and score that (`fit`)."""
    return fit(task.dataset, load(task.dataset), task.method, task.seed, task.varied or 0.0)


def fit(dataset: str, data: Series, method: str, seed: int, missing: float = 0.0) -> dict[str, Any]:
    """Learn from the first half of `data`, with a share of its outputs deleted at random, and score the second.

    `nlpd`, `crps` and `coverage90` are those of the free run, and so are the curves of the first output: the `mean`,
    the quantiles `low` and `high` that hold 90%, and the `truth`. `widening` is the standard deviation of the forecast
    over the last fifth of the free run, relative to its first step. `fit_seconds` is CPU time without compilation.
    """
    train, test = data.split(0.5)
    holed = train._replace(outputs=_delete(train.outputs, missing, seed))
    learned, seconds, compile_seconds = learn(build(method), holed, seed)
    if method in ONLINE:
        free = learned.forecast(len(test.outputs), test.inputs, seed=seed).samples
        blocks = _blocks_live(learned, test, seed)
    else:
        free = evaluation.free_run(learned, len(test.outputs), test.inputs, seed=seed)
        blocks = evaluation.blocks(learned, test.outputs, test.inputs, length=BLOCK, seed=seed)
    found, in_blocks = evaluation.score(free, test.outputs), evaluation.score(blocks, test.outputs)
    low, high = np.quantile(free[:, :, 0], [0.05, 0.95], axis=0)
    curves = {"mean": free[:, :, 0].mean(axis=0), "low": low, "high": high, "truth": test.outputs[:, 0]}
    deviation = free[:, :, 0].std(axis=0)
    return {
        "dataset": dataset,
        "method": method,
        "seed": seed,
        "missing": missing,
        "free_run_rmse": found.rmse,
        "blocks50_rmse": in_blocks.rmse,
        "nlpd": found.nlpd,
        "crps": found.crps,
        "coverage90": found.coverage90,
        "blocks50_coverage90": in_blocks.coverage90,
        "widening": float(deviation[-len(deviation) // 5 :].mean() / deviation[0]),
        "fit_seconds": seconds,
        "compile_seconds": compile_seconds,
        **{name: np.round(curve, 6).tolist() for name, curve in curves.items()},
    }


def _blocks_live(stream: Stream, test: Series, seed: int) -> NDArray:
    """Paths (p, T, dy): every block forecast from what was learned before it."""
    parts = []
    for first in range(0, len(test.outputs), BLOCK):
        rows = slice(first, first + BLOCK)
        inputs = None if test.inputs is None else test.inputs[rows]
        parts.append(stream.forecast(len(test.outputs[rows]), inputs, seed=seed + first).samples)
        learn_once(stream, test.outputs[rows], inputs)
    return np.concatenate(parts, axis=1)


def _delete(outputs: NDArray, share: float, seed: int) -> NDArray:
    kept = outputs.copy()
    rng = np.random.default_rng(seed)
    kept[rng.permutation(len(kept))[: round(share * len(kept))]] = np.nan
    return kept


def row(group: Group) -> dict[str, Any]:
    """Means over seeds, and the standard deviation of the free run's RMSE."""
    return (
        {"dataset": group.cell.dataset, "method": group.method, "seeds": len(group.results)}
        | means(group, "free_run_rmse")
        | {"free_run_rmse_sd": spread(group.values("free_run_rmse"))}
        | means(group, "blocks50_rmse", "nlpd", "crps", "coverage90", "fit_seconds")
    )


def section(groups: Sequence[Group]) -> Section:
    """As the paper prints it; then a table and a figure for every data set."""
    own = by(groups, "dataset")
    brief = as_printed(
        "Five recorded systems: RMSE of the free run", groups, lambda g: g.cell.dataset, "free_run_rmse", _printed
    )
    return Section(
        "Table II: five recorded systems",
        (
            "The first half of a series is to learn from. Free run: the second half forecast at once, as in the code "
            "of the paper. Blocks: forecast 50 steps at a time, each from what was recorded before it. RMSE in the "
            "units of the recording, mean ± standard error over seeds; the printed numbers with the standard error "
            "that follows from the printed standard deviation over five seeds. Online methods see every sample once.",
        ),
        (brief, *(_table(dataset, each) for dataset, each in own.items())),
        tuple(figure for dataset, each in own.items() for figure in _figure(dataset, each)),
    )


def _printed(group: Group) -> Estimate | None:
    place = DATASETS.index(group.cell.dataset)
    if group.method in PUBLISHED_ONLINE:
        return Estimate(PUBLISHED_ONLINE[group.method][place])
    if group.method not in PAPER:
        return None
    quoted, deviation = PAPER[group.method][place]
    return Estimate(quoted, deviation / np.sqrt(_PAPER_SEEDS))


def _table(dataset: str, groups: list[Group]) -> Table:
    columns: dict[str, Column] = {
        "method": method_name,
        "": lambda group: entry(group.cell.setting),
        "free run RMSE": value("free_run_rmse", error=True),
        "printed": lambda group: printed(_printed(group)),
        "verdict": lambda group: entry(verdict(mean(group.values("free_run_rmse")), _printed(group))),
        "blocks of 50 RMSE": value("blocks50_rmse", error=True),
        "NLPD": value("nlpd"),
        "CRPS": value("crps"),
        "in 90% band": value("coverage90", digits=2),
        "seconds a fit": value("fit_seconds", digits=1),
    }
    return table(dataset, groups, columns, "NLPD, CRPS and the band are those of the free run.")


def _figure(dataset: str, groups: list[Group]) -> tuple[Figure, ...]:
    shown = [group for group in groups if group.results]
    caption = f"{dataset}: the second half (black) and its free-run forecast with the 90% band, first seed."
    return panels(f"forecast-{dataset}", caption, shown, 3, (4.0, 1.9), _draw)


def _draw(ax: Axes, group: Group) -> None:
    result = group.results[0]
    forecast(ax, f"{group.method}: RMSE {result['free_run_rmse']:.3g}", result)
