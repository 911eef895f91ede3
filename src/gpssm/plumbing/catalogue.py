"""The classes whose objects may be part of a saved model, by their full names.

A class joins by a decorator; a file names it by its module, which is imported when it is needed. Two classes of
the same name in different modules are therefore two. Files of earlier formats name classes without their modules;
`FORMER` and `FORMER_FIELDS` say what those classes and their fields are called now.
"""

import importlib
import re
from typing import Any, TypeVar

K = TypeVar("K", bound=type)

_SAVED: dict[str, type] = {}
_OURS = re.compile(r"gpssm(\.[a-z][a-z0-9_]*)+\.[A-Za-z]\w*", re.ASCII)


def saved(kind: K) -> K:
    """Decorate a class, a dataclass or a NamedTuple, whose objects may be part of a saved model.

    For classes outside gpssm, an emission or a mean of your own: import their module before `gpssm.load`.

    Args:
        kind: the class. What its fields may hold, a file is checked against their annotations.

    Returns:
        The same class.

    >>> from typing import NamedTuple
    >>> @saved
    ... class Level(NamedTuple):
    ...     mean: float
    >>> find(name_of(Level)) is Level
    True
    """
    _SAVED[_full_name(kind)] = kind
    return kind


def name_of(kind: type) -> str | None:
    """The name that a file gives to this class; None if its objects cannot be saved."""
    name = _full_name(kind)
    return name if _SAVED.get(name) is kind else None


def find(name: str) -> type | None:
    """The class of that name; None if there is none, or it has not joined.

    Of this package only, modules are imported: a file can be written by anybody, and importing runs code.
    """
    if name not in _SAVED and _OURS.fullmatch(name):
        try:
            importlib.import_module(name.rpartition(".")[0])
        except ImportError:
            return None
    return _SAVED.get(name)


def present(bare: str, fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """What a class that files of format 2 and 3 call `bare` and its fields are called now; the same if not known."""
    name = f"gpssm.{FORMER[bare]}" if bare in FORMER else bare
    renamed = FORMER_FIELDS.get(name, {})
    return name, {renamed.get(field, field): value for field, value in fields.items()}


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


FORMER: dict[str, str] = {
    "FilterSettings": "filters.ensemble.FilterSettings",
    "Posterior": "posteriors.posterior.Posterior",
    "LinearPosterior": "posteriors.linear.LinearPosterior",
    "Stream": "online.stream.Stream",
    "Gate": "online.gate.Gate",
    "Trial": "online.augmented.Hypotheses",
    "Hyper": "online.oenvi.state.OEnVIHyper",
    "Settings": "online.oenvi.state.OEnVISettings",
    "State": "online.oenvi.state.OEnVIState",
    "PaperSettings": "online.oenvi.paper.PaperSettings",
    "PaperState": "online.oenvi.paper.PaperState",
    "PaperOEnVI": "online.oenvi.paper.PaperOEnVI",
    "Scaling": "models.scaling.Scaling",
    "Series": "datasets.series.Series",
    "Options": "filters.ensemble.Options",
    "Gaussian": "filters.kalman.Gaussian",
    "System": "filters.kalman.System",
    "Joint": "filters.augmented.AugmentedState",
    "Basis": "gp.basis.Basis",
    "Sensitivity": "filters.sensitivity.Sensitivity",
    "History": "posteriors.history.History",
    "Transition": "models.gpssm.Transition",
    "DiagonalNoise": "models.noise.DiagonalNoise",
    "FullNoise": "models.noise.FullNoise",
    "InitialState": "models.gpssm.InitialState",
    "GPSSM": "models.gpssm.GPSSM",
    "ResidualTransition": "models.neural.ResidualTransition",
    "GatedTransition": "models.neural.GatedTransition",
    "LinearEmission": "models.emission.LinearEmission",
    "FunctionEmission": "models.emission.FunctionEmission",
    "Dense": "numerics.networks.Dense",
    "MLP": "numerics.networks.MLP",
    "GRU": "numerics.networks.GRU",
    "BidirectionalGRU": "numerics.networks.BidirectionalGRU",
    "SparseGP": "gp.sparse.SparseGP",
    "Zero": "gp.means.Zero",
    "Identity": "gp.means.Identity",
    "Linear": "gp.means.Linear",
    "Function": "gp.means.Function",
    "RBF": "gp.kernels.RBF",
    "Matern32": "gp.kernels.Matern32",
    "Matern52": "gp.kernels.Matern52",
    "Sum": "gp.kernels.Sum",
    "Product": "gp.kernels.Product",
    "OEnVI": "online.oenvi.method.OEnVI",
    "RGPSSMHyper": "online.rgpssm.RGPSSMHyper",
    "RGPSSMState": "online.rgpssm.RGPSSMState",
    "RGPSSM": "online.rgpssm.RGPSSM",
    "Particles": "online.svmc.filtering.Particles",
    "KernelParameters": "online.svmc.filtering.KernelParameters",
    "NoiseParameters": "online.svmc.filtering.NoiseParameters",
    "Adapted": "online.svmc.filtering.Adapted",
    "SVMCState": "online.svmc.filtering.SVMCState",
    "SVMC": "online.svmc.method.SVMC",
    "Recognition": "online.vjf.inference.Recognition",
    "Learned": "online.vjf.inference.Learned",
    "Weights": "online.vjf.inference.Weights",
    "Scales": "online.vjf.inference.Scales",
    "VJFState": "online.vjf.inference.VJFState",
    "VJF": "online.vjf.method.VJF",
}

# Full name of a class: {former name of a field: present name}.
FORMER_FIELDS: dict[str, dict[str, str]] = {
    "gpssm.online.stream.Stream": {"begun": "unit_samples"},
    "gpssm.online.oenvi.state.OEnVIState": {"joint": "augmented"},
    "gpssm.online.rgpssm.RGPSSMState": {"joint": "augmented", "moments": "adam"},
}
