"""Filters as pure functions: exact Kalman, ensemble Kalman, extended Kalman, particle.

A filter of a fitted model is a module with `filter_of(model, settings)`, which returns a `stepwise.Filter`: where it
starts, what one sample does, and draws of where it is. All of it is standardised. A new filter is such a file and one
line here.
"""

from typing import TYPE_CHECKING

from gpssm.plumbing.lazy import exports

# Where a filter is; nothing is imported before it is used.
FILTERS = {
    "ensemble": "gpssm.filters.ensemble",
    "particle": "gpssm.filters.particle",
    "extended": "gpssm.filters.extended",
}

if TYPE_CHECKING:
    from gpssm.filters import ensemble as ensemble
    from gpssm.filters import extended as extended
    from gpssm.filters import kalman as kalman
    from gpssm.filters import particle as particle
else:  # hidden from type checkers, to which a misspelled name would be as good as any other
    __getattr__, __dir__ = exports(
        __name__, "FILTERS", {name: f"{__name__}.{name}" for name in ("ensemble", "extended", "kalman", "particle")}
    )
