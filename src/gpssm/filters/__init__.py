"""Filters as pure functions: exact Kalman, ensemble Kalman, extended Kalman, particle."""

from gpssm.filters import ensemble as ensemble
from gpssm.filters import extended as extended
from gpssm.filters import kalman as kalman
from gpssm.filters import particle as particle
