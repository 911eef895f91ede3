"""The same method with many settings on one recording, run by the same processes or cluster as the paper."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from itertools import product
from typing import Any

from gpssm.datasets.series import Series
from gpssm.errors import InvalidInput
from gpssm.parallel import cluster as dask
from gpssm.parallel import pool


def sweep(
    method: Any, grid: Mapping[str, Sequence[Any]], data: Series, cluster: str | None = None
) -> list[dict[str, Any]]:
    """Fit every combination of settings to the first half of a recording and score forecasts of the second.

    Call it from under `if __name__ == "__main__":` in a script: every process that it starts imports the script.

    Args:
        method: what is varied, `gpssm.EnVI(4)` for example, or a method that learns live.
        grid: names of its settings, or `seed`, each with values: `{"num_inducing": [10, 20], "seed": [0, 1]}`.
        data: a recording, from `gpssm.datasets.load` or `from_csv`.
        cluster: address of a Dask scheduler; by default this machine, one process per core.

    Returns:
        One row for every combination, in the order of the grid: its settings, the scores of the forecast
        (`gpssm.evaluation`), `seconds` with compilation, and `error`, which is None unless the fit has failed; then
        there are no scores. Ready for `pandas.DataFrame`.

    >>> import gpssm
    >>> data = gpssm.datasets.kink(length=60, process_noise=0.0025, obs_noise=0.008, seed=0)
    >>> rows = gpssm.sweep(gpssm.ARX(order=1), {"order": [1, 50]}, data)
    >>> [(row["order"], "rmse" in row) for row in rows]  # thirty samples are too few for an order of 50
    [(1, True), (50, False)]
    >>> rows[1]["error"].startswith("InvalidInput")
    True
    """
    _check(method, grid, data)
    rows: list[dict[str, Any]] = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    runner = pool.run if cluster is None else partial(dask.run, cluster)
    for event in runner(partial(_try, method, data), list(rows)):
        if event.kind == "done":
            rows[event.place] |= event.value
        elif event.kind == "died":
            rows[event.place] |= {"error": event.value}
    return rows


def _check(method: Any, grid: Mapping[str, Sequence[Any]], data: Series) -> None:
    if not is_dataclass(method) or isinstance(method, type) or not (hasattr(method, "fit") or hasattr(method, "start")):
        raise InvalidInput(f"method: expected a method such as gpssm.EnVI(4), got {method!r}.")
    known = [field.name for field in fields(method) if field.init]
    for name, values in grid.items():
        if name not in (*known, "seed"):
            raise InvalidInput(f"grid: {type(method).__name__} has no {name!r}; expected seed or {', '.join(known)}.")
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise InvalidInput(f"grid: expected a list of values for {name!r}, got {values!r}.")
    if not isinstance(data, Series):
        raise InvalidInput(f"data: expected a recording (gpssm.datasets.Series), got {type(data).__name__}.")
    data.split(0.5)  # says what is wrong with it, if anything is


def _try(method: Any, data: Series, settings: dict[str, Any]) -> dict[str, Any]:
    """In the process of a worker: scores and seconds, or the error."""
    from gpssm import evaluation

    began = time.perf_counter()
    try:
        train, test = data.split(0.5)
        seed = settings.get("seed", 0)
        method = replace(method, **{name: value for name, value in settings.items() if name != "seed"})
        if hasattr(method, "fit"):
            learned = method.fit(train.outputs, train.inputs, seed=seed)
        else:
            learned = method.start(seed=seed)
            learned.learn_many(train.outputs, train.inputs)
        paths = learned.forecast(len(test.outputs), test.inputs, seed=seed).samples
        found: dict[str, Any] = evaluation.score(paths, test.outputs).as_dict() | {"error": None}
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}"}
    return found | {"seconds": time.perf_counter() - began}
