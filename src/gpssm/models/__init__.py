"""The state-space model: transition, emission, noise and likelihood, initial state, units.

A likelihood (`models.noise.Likelihood`) is a class that can be made from its squared widths (dy,) alone. A new one is a
file with such a class and one line here.
"""

from typing import TYPE_CHECKING

from gpssm.plumbing.lazy import exports

# Where a likelihood is; nothing is imported before it is used.
LIKELIHOODS = {
    "gaussian": "gpssm.models.noise.DiagonalNoise",
    "student_t": "gpssm.models.student_t.StudentT",
}

if TYPE_CHECKING:
    from gpssm.models.emission import FunctionEmission as FunctionEmission
    from gpssm.models.emission import LinearEmission as LinearEmission
    from gpssm.models.gpssm import GPSSM as GPSSM
    from gpssm.models.gpssm import InitialState as InitialState
    from gpssm.models.gpssm import Transition as Transition
    from gpssm.models.noise import DiagonalNoise as DiagonalNoise
    from gpssm.models.noise import FullNoise as FullNoise
    from gpssm.models.student_t import StudentT as StudentT
else:  # hidden from type checkers, to which a misspelled name would be as good as any other
    __getattr__, __dir__ = exports(
        __name__,
        "LIKELIHOODS",
        dict.fromkeys(("GPSSM", "InitialState", "Transition"), "gpssm.models.gpssm")
        | dict.fromkeys(("DiagonalNoise", "FullNoise"), "gpssm.models.noise")
        | dict.fromkeys(("FunctionEmission", "LinearEmission"), "gpssm.models.emission")
        | {"StudentT": "gpssm.models.student_t"},
    )
