"""A table of what a model has learned, in the user's units."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpssm.gp.kernels import Kernel
from gpssm.models.gpssm import GPSSM
from gpssm.models.scaling import Scaling
from gpssm.numerics.parameters import parameters
from gpssm.posteriors.calibration import Calibration
from gpssm.posteriors.check import Check
from gpssm.posteriors.history import History

NDArray = np.ndarray


@dataclass(frozen=True)
class Row:
    """One parameter, or what follows from several."""

    name: str
    value: NDArray
    unit: str
    learned: bool


@dataclass(frozen=True)
class Summary:
    """Parameters and the course of the fit. Print it, or take `as_dict`.

    >>> from gpssm import ARX
    >>> str(ARX(order=1).fit([[1.0], [0.5], [0.3], [0.1], [0.2]]).summary()).splitlines()[2]
    'transition.weight         learned  0.3966  [state / (state, input)]'
    """

    method: str
    """Its name."""
    rows: tuple[Row, ...]
    """A parameter each, in the user's units."""
    iterations: int
    """Steps of the optimiser."""
    elbo: float
    """What was maximised, in nats: of a linear model the log-likelihood itself. NaN if it is not known."""
    converged: bool
    """Whether nothing was gained any more in the end."""
    messages: tuple[str, ...]
    """What a user should know of the fit."""
    objective: str = "ELBO"
    """What was maximised."""
    planned: bool = False
    """Whether the number of iterations was chosen to be enough."""
    check: Check | None = None
    """On the end of the recordings, of a fit with `holdout`."""
    calibration: Calibration | None = None
    """What the bands of forecasts are multiplied by."""

    def as_dict(self) -> dict[str, Any]:
        """The same, ready for JSON."""
        rows = {row.name: {"value": row.value.tolist(), "unit": row.unit, "learned": row.learned} for row in self.rows}
        return self.course() | {"parameters": rows}

    def course(self) -> dict[str, Any]:
        """How the fit went, without the parameters, ready for JSON."""
        return {
            "method": self.method,
            "iterations": self.iterations,
            self.objective.lower().replace("-", "_"): self.elbo,
            "converged": self.converged,
            "messages": list(self.messages),
            "check": None if self.check is None else self.check.as_dict(),
            "calibration": None if self.calibration is None else self.calibration.as_dict(),
        }

    def __str__(self) -> str:
        end = " (objective settled)" if self.converged else "" if self.planned else " (stopped at the step limit)"
        linear = f"linear, {len(self.rows[0].value)} state(s)"
        about = f"{self.iterations} iterations{end}" if self.objective == "ELBO" else linear
        if not self.iterations and self.objective == "ELBO":
            about = "not fitted by iterations"  # but learned live
        value = "" if math.isnan(self.elbo) else f", {self.objective} {self.elbo:.4g}"
        lines = [f"{self.method}: {about}{value}", ""]
        width = max(len(row.name) for row in self.rows)
        for row in self.rows:
            learned = "learned" if row.learned else "fixed  "
            lines.append(f"{row.name:<{width}}  {learned}  {_format(row.value)}  [{row.unit}]")
        if self.messages:
            lines += ["", *self.messages]
        lines += ["", str(self.check) if self.check is not None else _NOT_CHECKED]
        if self.calibration is not None:
            lines.append(str(self.calibration))
        return "\n".join(lines)


_NOT_CHECKED = "not checked: fit with holdout=0.2, or evaluate it on other data, to know how well it forecasts."


def summarise(model: GPSSM, scaling: Scaling, fixed: tuple[str, ...], history: History, method: str) -> Summary:
    """Every parameter of a GP or neural model, in the user's units."""
    values = {p.name: np.asarray(p.value) for p in parameters(model)}
    rows = _rows(values, scaling, fixed, model)
    return _summary(method, rows, history, "ELBO", max(history.elbo, default=math.nan))


def summarise_linear(
    values: Mapping[str, NDArray], scaling: Scaling, fixed: tuple[str, ...], history: History, method: str, value: float
) -> Summary:
    """The matrices of a linear system with log-likelihood `value`, its poles and its gains, in the user's units.

    A pole is an eigenvalue of A, `modulus * exp(i * angle)`: a mode decays by `modulus` in every step. Gains (dy, dc)
    are the effect of constant inputs in the end, where there is one: the system is stable.
    """
    rows = _rows(values, scaling, fixed)
    dx, learned, user = len(scaling.state_shift), "transition.weight" not in fixed, {r.name: r.value for r in rows}
    a, b = np.hsplit(user["transition.weight"], [dx])
    poles = np.linalg.eigvals(values["transition.weight"][:, :dx])
    rows.append(Row("poles.modulus", np.abs(poles), "per step", learned))
    rows.append(Row("poles.angle", np.angle(poles), "rad per step", learned))
    if b.size and (np.abs(poles) < 1).all():
        gain = user["emission.weight"] @ np.linalg.solve(np.eye(dx) - a, b)
        rows.append(Row("gain", gain, "output / input", learned))
    return _summary(method, rows, history, "log-likelihood", value)


def _summary(method: str, rows: list[Row], history: History, objective: str, value: float) -> Summary:
    steps = history.step[-1] if history.step else 0
    course = steps, float(value), history.converged, tuple(history.messages)
    return Summary(method, tuple(rows), *course, objective, history.planned)


def _rows(
    values: Mapping[str, NDArray], scaling: Scaling, fixed: tuple[str, ...], model: GPSSM | None = None
) -> list[Row]:
    """Every parameter in the user's units, which are those of its name, or else of the last part of its name."""
    kernel: Kernel | None = model.transition.gp.kernel if model is not None and model.num_inducing else None
    states, outputs, state_shift = scaling.state_scale, scaling.output_scale, scaling.state_shift
    scale, shift = scaling.argument_scale, scaling.argument_shift
    at_shift = values["emission.weight"] @ (state_shift / states) if "emission.weight" in values else 0.0
    line = "transition.mean" if "transition.mean.weight" in values else "transition"
    units: dict[str, tuple[str, Callable[[NDArray], NDArray]]] = {
        "variance": ("state^2", lambda v: v * states**2),
        "process_noise.chol": ("state", lambda v: states[:, None] * v),
        "process_noise.cov": ("state^2", scaling.state_cov),
        "obs_noise.variance": ("output^2", lambda v: v * outputs**2),
        "obs_noise.cov": ("output^2", lambda v: v * outputs[:, None] * outputs),
        "lengthscale": ("state, input", lambda v: v * scale),
        "inducing_inputs": ("state, input", lambda v: shift + scale * v),
        f"{line}.weight": ("state / (state, input)", lambda v: states[:, None] * v / scale),
        f"{line}.bias": ("state", lambda v: scaling.states(v - values[f"{line}.weight"] @ (shift / scale))),
        "emission.weight": ("output / state", lambda v: outputs[:, None] * v / states),
        "emission.bias": ("output", lambda v: _difference(scaling.outputs(v), outputs * at_shift)),
        "initial_state.mean": ("state", scaling.states),
        "initial_state.prior_mean": ("state", scaling.states),
        "initial_state.chol": ("state", lambda v: states[:, None] * v),
        "q_mean": ("whitened", np.asarray),
        "q_chol": ("whitened", np.asarray),
    }
    for own, (unit, power) in ({} if model is None else model.obs_noise.units).items():
        units[f"obs_noise.{own}"] = unit, lambda v, power=power: v * outputs**power if power else v
    rows = []
    with np.errstate(over="ignore", invalid="ignore"):  # the square of a very large unit is infinite
        for name, value in values.items():
            unit, translate = units.get(name) or units.get(name.rsplit(".", 1)[-1]) or ("", np.asarray)
            of_kernel = name.removeprefix("transition.gp.kernel.")
            factor = kernel is not None and of_kernel != name and not kernel.in_squares_of_f(of_kernel.split(".")[:-1])
            if not unit or (factor and name.endswith("variance")):
                unit, translate = "standardised", np.asarray
            rows.append(Row(name, translate(value), unit, name not in fixed))
    return rows


def _difference(of: NDArray, other: NDArray) -> NDArray:
    """Of numbers that are equal but for rounding it is zero."""
    return np.where(np.isclose(of, other, rtol=1e-12, atol=0.0), 0.0, of - other)


def _format(value: NDArray) -> str:
    flat = np.ravel(value)
    if flat.size > 8:
        return f"{'x'.join(map(str, value.shape))} values in [{flat.min():.4g}, {flat.max():.4g}]"
    return " ".join(f"{v:.4g}" for v in flat)
