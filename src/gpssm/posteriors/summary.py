"""A table of what a model has learned, in the user's units."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpssm.models.gpssm import GPSSM
from gpssm.models.scaling import Scaling
from gpssm.numerics.parameters import parameters
from gpssm.posteriors.history import History


@dataclass(frozen=True)
class Row:
    """One parameter."""

    name: str
    value: np.ndarray
    unit: str
    learned: bool


@dataclass(frozen=True)
class Summary:
    """Parameters and the course of the fit."""

    method: str
    rows: tuple[Row, ...]
    iterations: int
    elbo: float
    converged: bool
    messages: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The same, ready for JSON."""
        return {
            "method": self.method,
            "iterations": self.iterations,
            "elbo": self.elbo,
            "converged": self.converged,
            "messages": list(self.messages),
            "parameters": {
                row.name: {"value": row.value.tolist(), "unit": row.unit, "learned": row.learned} for row in self.rows
            },
        }

    def __str__(self) -> str:
        end = "objective settled" if self.converged else "stopped at the step limit"
        lines = [f"{self.method}: {self.iterations} iterations ({end}), ELBO {self.elbo:.4g}", ""]
        width = max(len(row.name) for row in self.rows)
        for row in self.rows:
            lines.append(
                f"{row.name:<{width}}  {'learned' if row.learned else 'fixed  '}  {_format(row.value)}  [{row.unit}]"
            )
        lines.extend(["", *self.messages] if self.messages else [])
        return "\n".join(lines)


def summarise(model: GPSSM, scaling: Scaling, fixed: tuple[str, ...], history: History, method: str) -> Summary:
    """Translate every parameter to the user's units."""
    states, outputs = scaling.state_scale, scaling.output_scale
    gp_scale, gp_shift = scaling.argument_scale, scaling.argument_shift
    values = {p.name: p.value for p in parameters(model)}
    rows = []
    for p in parameters(model):
        value, unit = np.asarray(p.value), "standardised"
        owner, leaf = p.name.split(".")[0], p.name.rsplit(".", 1)[-1]
        if owner == "process_noise":
            value, unit = (value * states**2, "state^2") if leaf == "variance" else (states[:, None] * value, "state")
        elif p.name == "obs_noise.variance":
            value, unit = value * outputs**2, "output^2"
        elif owner == "obs_noise":
            unit = type(model.obs_noise).__name__
        elif leaf == "lengthscale":
            value, unit = value * gp_scale, "state, input"
        elif p.name.startswith("transition.gp.kernel") and leaf == "variance":
            path = p.name.removeprefix("transition.gp.kernel.").split(".")[:-1]
            if model.transition.gp.kernel.in_squares_of_f(path):
                value, unit = value * states**2, "state^2"
        elif leaf == "inducing_inputs":
            value, unit = gp_shift + gp_scale * value, "state, input"
        elif p.name == "transition.mean.weight":
            value, unit = states[:, None] * value / gp_scale, "state / (state, input)"
        elif p.name == "transition.mean.bias":
            weight = np.asarray(values["transition.mean.weight"])
            value, unit = scaling.state_shift + states * (value - weight @ (gp_shift / gp_scale)), "state"
        elif p.name == "emission.weight":
            value, unit = outputs[:, None] * value / states, "output / state"
        elif p.name == "emission.bias":
            weight = np.asarray(values["emission.weight"])
            value, unit = scaling.output_shift + outputs * (value - weight @ (scaling.state_shift / states)), "output"
        elif p.name == "initial_state.mean":
            value, unit = scaling.states(value), "state"
        elif p.name == "initial_state.chol":
            value, unit = states[:, None] * value, "state"
        elif leaf in ("q_mean", "q_chol"):
            unit = "whitened"
        rows.append(Row(p.name, value, unit, p.name not in fixed))
    steps, elbos = history.step, history.elbo
    return Summary(
        method,
        tuple(rows),
        steps[-1] if steps else 0,
        float(max(elbos)) if elbos else float("nan"),
        history.converged,
        tuple(history.messages),
    )


def _format(value: np.ndarray) -> str:
    flat = np.ravel(value)
    if flat.size > 8:
        return f"{'x'.join(map(str, value.shape))} values in [{flat.min():.4g}, {flat.max():.4g}]"
    return " ".join(f"{v:.4g}" for v in flat)
