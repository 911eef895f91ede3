"""ODGPSSM: output-dependent Gaussian process state-space models (Lin et al., ICASSP 2023).

PRSSM whose GPs are mixed by a learned matrix, f = mean + W g, so that the dimensions of f depend on
each other (the linear model of coregionalisation, with as many latent GPs as states). What is not
known of f at a point is then correlated between its dimensions, in training and in forecasts.
The same transition is at hand for every other method as `mixed=True`.
"""

from dataclasses import dataclass, field

from gpssm.methods.prssm import PRSSM


@dataclass(frozen=True)
class ODGPSSM(PRSSM):
    """PRSSM with mixed GPs; W (dx, dx) is the identity before training.

    >>> import gpssm
    >>> gpssm.ODGPSSM(state_dim=4).mixed
    True
    """

    mixed: bool = field(default=True, kw_only=True)
