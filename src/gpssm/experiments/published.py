"""What others have published for the recordings: errors on the same test parts."""

from typing import NamedTuple

from gpssm.experiments import sysid


class Published(NamedTuple):
    """The error of a system that somebody else has run on the same test part, in the units of the recording."""

    kind: str
    system: str
    rmse: float
    unit: str
    source: str
    test: str = "test"

    @property
    def name(self) -> str:
        """The kind of system, and which one, if that is known."""
        return f"{self.kind} ({self.system})" if self.system else self.kind

    @property
    def error(self) -> str:
        """With its unit."""
        return f"{self.rmse:g} {self.unit}".strip()


# Champneys et al.: data set, test, unit, kind, system and RMSE. Of the best linear systems they tell no names.
_CHAMPNEYS: tuple[tuple[str, str, str, str, str, float], ...] = (
    ("cascaded_tanks", "test", "V", "linear", "", 0.588),
    ("cascaded_tanks", "test", "V", "black box", "continuous-time SUBNET", 0.306),
    ("cascaded_tanks", "test", "V", "black box", "GRU", 0.396),
    ("cascaded_tanks", "test", "V", "black box", "polynomial NARX", 0.413),
    ("cascaded_tanks", "test", "V", "black box", "GP NARX", 0.622),
    ("cascaded_tanks", "test", "V", "grey box", "", 0.191),
    ("coupled_drives_1", "test", "", "linear", "", 0.224),
    ("coupled_drives_1", "test", "", "black box", "continuous-time SUBNET", 0.115),
    ("coupled_drives_1", "test", "", "black box", "GP NARX", 0.102),
    ("coupled_drives_2", "test", "", "linear", "", 0.384),
    ("coupled_drives_2", "test", "", "black box", "continuous-time SUBNET", 0.074),
    ("coupled_drives_2", "test", "", "black box", "GP NARX", 0.090),
    ("silverbox", "multisine", "V", "linear", "", 6.96e-3),
    ("silverbox", "multisine", "V", "black box", "SUBNET", 0.36e-3),
    ("silverbox", "multisine", "V", "black box", "GP NARX", 0.30e-3),
    ("silverbox", "arrow", "V", "linear", "", 14.4e-3),
    ("silverbox", "arrow", "V", "black box", "PNLSS", 0.26e-3),
    ("silverbox", "arrow", "V", "black box", "GP NARX", 0.60e-3),
    ("wiener_hammerstein", "test", "V", "linear", "", 43.4e-3),
    ("wiener_hammerstein", "test", "V", "black box", "SUBNET", 0.241e-3),
    ("wiener_hammerstein", "test", "V", "black box", "GRU", 3.97e-3),
    ("wiener_hammerstein", "test", "V", "black box", "GP NARX", 23.1e-3),
    ("emps", "test", "m", "linear", "", 5.53e-3),
    ("emps", "test", "m", "black box", "dynoNet", 2.64e-3),
    ("emps", "test", "m", "black box", "GRU", 220e-3),
    ("emps", "test", "m", "black box", "GP NARX", 1690e-3),
)


def published(dataset: str) -> tuple[Published, ...]:
    """All that is published for a data set; of the paper's table, and of what its rows come from, every system."""
    source = "Champneys et al. 2024 (arXiv 2405.10779)"
    found = tuple(
        Published(kind, system, rmse, unit, source, test)
        for name, test, unit, kind, system, rmse in _CHAMPNEYS
        if name == dataset
    )
    if dataset in sysid.DATASETS:
        place = sysid.DATASETS.index(dataset)
        paper = ((name, cells[place][0]) for name, cells in sysid.PAPER.items())
        online = ((name, cells[place]) for name, cells in sysid.PUBLISHED_ONLINE.items())
        found += tuple(Published("offline", name, rmse, "", "the paper's Table II") for name, rmse in paper)
        found += tuple(Published("online", name, rmse, "", "results its authors have stored") for name, rmse in online)
    return found


def best_published(dataset: str) -> tuple[Published, ...]:
    """The smallest error of every kind of system, the largest first."""
    best: dict[tuple[str, str], Published] = {}
    for each in published(dataset):
        key = (each.kind, each.test)
        if key not in best or each.rmse < best[key].rmse:
            best[key] = each
    return tuple(sorted(best.values(), key=lambda each: (each.test, -each.rmse)))
