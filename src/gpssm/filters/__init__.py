"""Filters as pure functions: exact Kalman, ensemble Kalman, extended Kalman, particle.

A filter of a fitted model is a module with `filter_recording(model, members, outputs, inputs, key, settings)`. It
starts from `members` (n, dx) one step before the first sample, or from p(x_0) where they are None, and runs over
standardised `outputs` (T, dy), NaN where one is missing, and `inputs` (T, dc). It returns an object with `mean`
(T, dx), `cov` (T, dx, dx), `log_likelihood` (T,) and the `members` (n, dx) after the last sample. A new filter is such
a file and one line here.
"""

from gpssm.plumbing.lazy import exports

# Where a filter is; nothing is imported before it is used.
FILTERS = {
    "ensemble": "gpssm.filters.ensemble",
    "particle": "gpssm.filters.particle",
    "extended": "gpssm.filters.extended",
}

__getattr__, __dir__ = exports(
    __name__, "FILTERS", {name: f"{__name__}.{name}" for name in ("ensemble", "extended", "kalman", "particle")}
)
