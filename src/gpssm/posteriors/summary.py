"""A table of what a model has learned, in the user's units."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpssm.gp.kernels import Kernel, Product
from gpssm.models.gpssm import GPSSM
from gpssm.models.scaling import Scaling
from gpssm.numerics.parameters import parameters
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
    >>> print(ARX(order=1).fit([[1.0], [0.5], [0.3], [0.1], [0.2]]).summary())
    ARX: linear, 1 state(s), log-likelihood -4.299
    <BLANKLINE>
    transition.weight         learned  0.3966  [state / (state, input)]
    transition.bias           learned  0.08659  [state]
    process_noise.cov         learned  0.008547  [state^2]
    emission.weight           fixed    1  [output / state]
    emission.bias             fixed    0  [output]
    obs_noise.cov             fixed    0  [output^2]
    initial_state.prior_mean  learned  0.475  [state]
    poles.modulus             learned  0.3966  [per step]
    poles.angle               learned  0  [rad per step]
    """

    method: str
    rows: tuple[Row, ...]
    iterations: int
    elbo: float
    """What was maximised, in nats: of a linear model the log-likelihood itself; NaN if not known."""
    converged: bool
    messages: tuple[str, ...]
    objective: str = "ELBO"

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
        }

    def __str__(self) -> str:
        if self.objective == "ELBO":
            end = "objective settled" if self.converged else "stopped at the step limit"
            about = f"{self.iterations} iterations ({end})"
        else:
            about = f"linear, {len(self.rows[0].value)} state(s)"
        lines = [f"{self.method}: {about}, {self.objective} {self.elbo:.4g}", ""]
        width = max(len(row.name) for row in self.rows)
        for row in self.rows:
            lines.append(
                f"{row.name:<{width}}  {'learned' if row.learned else 'fixed  '}  {_format(row.value)}  [{row.unit}]"
            )
        lines.extend(["", *self.messages] if self.messages else [])
        return "\n".join(lines)


def summarise(model: GPSSM, scaling: Scaling, fixed: tuple[str, ...], history: History, method: str) -> Summary:
    """Every parameter of a GP or neural model, in the user's units."""
    values = {p.name: np.asarray(p.value) for p in parameters(model)}
    kernel = model.transition.gp.kernel if model.num_inducing else None
    elbo = float(max(history.elbo)) if history.elbo else float("nan")
    return _summary(method, _rows(values, scaling, fixed, kernel), history, elbo)


def summarise_linear(
    values: Mapping[str, NDArray],
    scaling: Scaling,
    fixed: tuple[str, ...],
    history: History,
    method: str,
    log_likelihood: float | None,
) -> Summary:
    """The matrices of a linear system, its poles and its gains at rest (output / input), in the user's units.

    A pole is an eigenvalue of A, `modulus * exp(i * angle)`: a mode decays by `modulus` per step. Gains are those that
    there are: of a stable system with inputs.
    """
    rows = _rows(values, scaling, fixed)
    user = {row.name: row.value for row in rows}
    weight, emission, dx = user["transition.weight"], user["emission.weight"], len(scaling.state_shift)
    learned = "transition.weight" not in fixed
    poles = np.linalg.eigvals(values["transition.weight"][:, :dx])
    rows.append(Row("poles.modulus", np.abs(poles), "per step", learned))
    rows.append(Row("poles.angle", np.angle(poles), "rad per step", learned))
    if weight.shape[1] > dx and (np.abs(poles) < 1).all():
        gain = emission @ np.linalg.solve(np.eye(dx) - weight[:, :dx], weight[:, dx:])
        rows.append(Row("gain", gain, "output / input", learned))
    value = float("nan") if log_likelihood is None else log_likelihood
    return _summary(method, rows, history, value, "log-likelihood")


def _summary(method: str, rows: list[Row], history: History, value: float, objective: str = "ELBO") -> Summary:
    steps = history.step[-1] if history.step else 0
    return Summary(method, tuple(rows), steps, value, history.converged, tuple(history.messages), objective)


def _rows(
    values: Mapping[str, NDArray], scaling: Scaling, fixed: tuple[str, ...], kernel: Kernel | None = None
) -> list[Row]:
    """Translate every parameter to the user's units."""
    states, outputs = scaling.state_scale, scaling.output_scale
    gp_scale, gp_shift = scaling.argument_scale, scaling.argument_shift
    rows = []
    for name, value in values.items():
        unit = "standardised"
        owner, leaf = name.split(".")[0], name.rsplit(".", 1)[-1]
        if owner in ("process_noise", "obs_noise"):
            scale, unit = (states, "state") if owner == "process_noise" else (outputs, "output")
            if leaf == "chol":
                value = scale[:, None] * value
            else:
                value = value * (scale**2 if leaf == "variance" else scale[:, None] * scale)
                unit = f"{unit}^2"
        elif leaf == "lengthscale":
            value, unit = value * gp_scale, "state, input"
        elif name.startswith("transition.gp.kernel") and leaf == "variance":
            if not _inside_product(kernel, name.removeprefix("transition.gp.kernel.").split(".")[:-1]):
                value, unit = value * states**2, "state^2"
        elif leaf == "inducing_inputs":
            value, unit = gp_shift + gp_scale * value, "state, input"
        elif name in ("transition.mean.weight", "transition.weight"):
            value, unit = states[:, None] * value / gp_scale, "state / (state, input)"
        elif name in ("transition.mean.bias", "transition.bias"):
            weight = values[name.replace("bias", "weight")]
            value, unit = scaling.state_shift + states * (value - weight @ (gp_shift / gp_scale)), "state"
        elif name == "emission.weight":
            value, unit = outputs[:, None] * value / states, "output / state"
        elif name == "emission.bias":
            weight = values["emission.weight"]
            value, unit = scaling.output_shift + outputs * (value - weight @ (scaling.state_shift / states)), "output"
        elif name in ("initial_state.mean", "initial_state.prior_mean"):
            value, unit = scaling.states(value), "state"
        elif name == "initial_state.chol":
            value, unit = states[:, None] * value, "state"
        elif leaf in ("q_mean", "q_chol"):
            unit = "whitened"
        rows.append(Row(name, value, unit, name not in fixed))
    return rows


def _inside_product(kernel: Kernel | None, path: list[str]) -> bool:
    """In a product of kernels the unit belongs to the product, so its factors stay as they are."""
    for name in path:
        if isinstance(kernel, Product):
            return True
        kernel = getattr(kernel, name)
    return False


def _format(value: NDArray) -> str:
    flat = np.ravel(value)
    if flat.size > 8:
        return f"{'x'.join(map(str, value.shape))} values in [{flat.min():.4g}, {flat.max():.4g}]"
    return " ".join(f"{v:.4g}" for v in flat)
