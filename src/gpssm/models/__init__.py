"""The state-space model: transition, emission, noise and likelihood, initial state, units.

A likelihood (`models.noise.Likelihood`) is a class that can be made from its squared widths (dy,) alone. A new one is a
file with such a class and one line here.
"""

# Where a likelihood is; nothing is imported before it is used.
LIKELIHOODS = {
    "gaussian": "gpssm.models.noise.DiagonalNoise",
    "student_t": "gpssm.models.student_t.StudentT",
}
