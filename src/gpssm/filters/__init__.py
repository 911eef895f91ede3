"""Filters as pure functions: exact Kalman, ensemble Kalman."""

from gpssm.filters import ensemble as ensemble
from gpssm.filters import kalman as kalman
