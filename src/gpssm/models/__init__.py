"""The state-space model: transition, emission, noise and likelihood, initial state, units.

A likelihood (`models.noise.Likelihood`) is a class that can be made from its squared widths (dy,) alone. A new one is a
file with such a class and one line here.
"""

from gpssm.plumbing.lazy import exports

# Where a likelihood is; nothing is imported before it is used.
LIKELIHOODS = {
    "gaussian": "gpssm.models.noise.DiagonalNoise",
    "student_t": "gpssm.models.student_t.StudentT",
}

__getattr__, __dir__ = exports(
    __name__,
    "LIKELIHOODS",
    dict.fromkeys(("GPSSM", "InitialState", "Transition"), "gpssm.models.gpssm")
    | dict.fromkeys(("DiagonalNoise", "FullNoise"), "gpssm.models.noise")
    | dict.fromkeys(("FunctionEmission", "LinearEmission"), "gpssm.models.emission")
    | {"StudentT": "gpssm.models.student_t"},
)
