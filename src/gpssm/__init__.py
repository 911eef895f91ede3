"""Gaussian process state-space models, learned from noisy time series.

Names are loaded on first use, so that `gpssm --help` does not wait for JAX. Importing changes
no global setting: no precision flag, no thread or core affinity.
"""

import importlib
from typing import TYPE_CHECKING, Any

from gpssm.methods.registry import METHODS, ONLINE

__version__ = "0.1.0"

_EXPORTS = {entry.attribute: entry.module for entry in (METHODS | ONLINE).values()} | {
    "Schedule": "gpssm.training.optimiser",
    "Fitted": "gpssm.posteriors.fitted",
    "Posterior": "gpssm.posteriors.posterior",
    "Stream": "gpssm.online.stream",
    "LinearPosterior": "gpssm.posteriors.linear",
    "load": "gpssm.plumbing.serialization",
    "saved": "gpssm.plumbing.catalogue",
    "sweep": "gpssm.parallel.sweep",
    "RBF": "gpssm.gp.kernels",
    "Matern32": "gpssm.gp.kernels",
    "Matern52": "gpssm.gp.kernels",
    "LinearEmission": "gpssm.models.emission",
}
_SUBMODULES = ("datasets", "filters", "gp", "models", "methods", "experiments", "evaluation", "metrics", "plots")

if TYPE_CHECKING:
    from gpssm import datasets as datasets
    from gpssm.gp.kernels import RBF as RBF
    from gpssm.gp.kernels import Matern32 as Matern32
    from gpssm.gp.kernels import Matern52 as Matern52
    from gpssm.methods.arx import ARX as ARX
    from gpssm.methods.envi import EnVI as EnVI
    from gpssm.methods.linear_gaussian import LinearGaussian as LinearGaussian
    from gpssm.methods.naive import LastValue as LastValue
    from gpssm.methods.naive import TrainingMean as TrainingMean
    from gpssm.models.emission import LinearEmission as LinearEmission
    from gpssm.online.oenvi.method import OEnVI as OEnVI
    from gpssm.online.stream import Stream as Stream
    from gpssm.parallel.sweep import sweep as sweep
    from gpssm.plumbing.catalogue import saved as saved
    from gpssm.plumbing.serialization import load as load
    from gpssm.posteriors.fitted import Fitted as Fitted
    from gpssm.posteriors.linear import LinearPosterior as LinearPosterior
    from gpssm.posteriors.posterior import Posterior as Posterior
    from gpssm.training.optimiser import Schedule as Schedule


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    if name in _SUBMODULES:
        return importlib.import_module(f"gpssm.{name}")
    raise AttributeError(f"module 'gpssm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*_EXPORTS, *_SUBMODULES, "__version__"])
