"""The experiments of the paper, one file per table or figure: its printed numbers, its fits, its tables, its figures.

A new one is a file with the names of `base.Experiment` and a line in the list here. It is then a command,
`gpssm reproduce NAME`, and a part of `gpssm reproduce all` and of its report. Nothing is imported before it is run.
"""

from typing import NamedTuple


class Entry(NamedTuple):
    """Where an experiment is, and what the help says of it."""

    module: str
    summary: str
    in_paper: bool = True
    """Whether `gpssm reproduce all` runs it."""


# In the order of the report.
EXPERIMENTS: dict[str, Entry] = {
    "kink": Entry("gpssm.experiments.kink", "Table I: the kink function, beside the paper's rows."),
    "sysid": Entry("gpssm.experiments.sysid", "Table II: five recorded systems, beside the paper's rows."),
    "recordings": Entry(
        "gpssm.experiments.recordings", "Sixteen recordings of fifteen systems, beside what is published for them."
    ),
    "car": Entry(
        "gpssm.experiments.car",
        "The supplement's two tables: filtering a car whose dynamics are learned on the way.",
    ),
    "nascar": Entry(
        "gpssm.experiments.nascar",
        "The NASCAR track: learn its dynamics in one pass, then forecast, beside an oracle.",
    ),
    "convergence": Entry(
        "gpssm.experiments.convergence",
        "The convergence figure: error of f on the kink function against iterations and against seconds.",
    ),
    "filters": Entry(
        "gpssm.experiments.filters",
        "Ensemble, particle and extended filter on kink and on Lorenz-96, beside published errors.",
        in_paper=False,
    ),
}
