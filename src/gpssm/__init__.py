"""Gaussian process state-space models, learned from noisy time series.

Names are loaded on first use, so that `gpssm --help` does not wait for JAX. Importing changes
no global setting: no precision flag, no thread or core affinity; and no cache of compiled programs, unless the
environment variable `GPSSM_CACHE` asks for it.
"""

import logging
from typing import TYPE_CHECKING

from gpssm.methods.registry import METHODS, ONLINE
from gpssm.plumbing.cache import of_environment as _cache_of_environment
from gpssm.plumbing.lazy import exports

__version__ = "0.1.0"

_HOMES = {entry.attribute: entry.module for entry in (METHODS | ONLINE).values()} | {
    "Schedule": "gpssm.training.optimiser",
    "Fitted": "gpssm.posteriors.fitted",
    "Posterior": "gpssm.posteriors.posterior",
    "Stream": "gpssm.online.stream",
    "Fleet": "gpssm.online.fleet",
    "LinearPosterior": "gpssm.posteriors.linear",
    "load": "gpssm.plumbing.serialization",
    "saved": "gpssm.plumbing.catalogue",
    "cache": "gpssm.plumbing.cache",
    "sweep": "gpssm.parallel.sweep",
    "backtest": "gpssm.parallel.backtest",
    "RBF": "gpssm.gp.kernels",
    "Matern32": "gpssm.gp.kernels",
    "Matern52": "gpssm.gp.kernels",
    "LinearEmission": "gpssm.models.emission",
}
_SUBMODULES = (
    *("datasets", "filters", "gp", "models", "methods", "experiments", "evaluation", "metrics"),
    *("plots", "sktime", "river"),
)

logging.getLogger(__name__).addHandler(logging.NullHandler())  # whoever wants to read what is logged says where
_cache_of_environment(default="0")

if TYPE_CHECKING:
    from gpssm import datasets as datasets
    from gpssm import evaluation as evaluation
    from gpssm import experiments as experiments
    from gpssm import filters as filters
    from gpssm import gp as gp
    from gpssm import methods as methods
    from gpssm import metrics as metrics
    from gpssm import models as models
    from gpssm import plots as plots
    from gpssm import river as river
    from gpssm import sktime as sktime
    from gpssm.gp.kernels import RBF as RBF
    from gpssm.gp.kernels import Matern32 as Matern32
    from gpssm.gp.kernels import Matern52 as Matern52
    from gpssm.methods.adenkf import ADEnKF as ADEnKF
    from gpssm.methods.arx import ARX as ARX
    from gpssm.methods.cogpssm import COGPSSM as COGPSSM
    from gpssm.methods.dkf import DKF as DKF
    from gpssm.methods.envi import EnVI as EnVI
    from gpssm.methods.linear_gaussian import LinearGaussian as LinearGaussian
    from gpssm.methods.naive import LastValue as LastValue
    from gpssm.methods.naive import TrainingMean as TrainingMean
    from gpssm.methods.odgpssm import ODGPSSM as ODGPSSM
    from gpssm.methods.prssm import PRSSM as PRSSM
    from gpssm.methods.vcdt import VCDT as VCDT
    from gpssm.methods.vgpssm import VGPSSM as VGPSSM
    from gpssm.models.emission import LinearEmission as LinearEmission
    from gpssm.online.fleet import Fleet as Fleet
    from gpssm.online.oenvi.method import OEnVI as OEnVI
    from gpssm.online.rgpssm import RGPSSM as RGPSSM
    from gpssm.online.stream import Stream as Stream
    from gpssm.online.svmc.method import SVMC as SVMC
    from gpssm.online.vjf.method import VJF as VJF
    from gpssm.parallel.backtest import backtest as backtest
    from gpssm.parallel.sweep import sweep as sweep
    from gpssm.plumbing.cache import cache as cache
    from gpssm.plumbing.catalogue import saved as saved
    from gpssm.plumbing.serialization import load as load
    from gpssm.posteriors.fitted import Fitted as Fitted
    from gpssm.posteriors.linear import LinearPosterior as LinearPosterior
    from gpssm.posteriors.posterior import Posterior as Posterior
    from gpssm.training.optimiser import Schedule as Schedule
else:  # hidden from type checkers, to which a misspelled name would be as good as any other
    __getattr__, __dir__ = exports(__name__, "__version__", _HOMES | {name: f"gpssm.{name}" for name in _SUBMODULES})
