"""All methods by name: what `gpssm fit`, every table and every figure can be asked for.

A new method is one file and one line here (`docs/add_a_method.md`). Nothing is imported before it is built.
"""

import importlib
import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

from gpssm.errors import InvalidInput


class Entry(NamedTuple):
    """Where a method is, and the settings that make it the one of that name."""

    module: str
    attribute: str
    settings: Mapping[str, Any] = {}


# Systems that learn a nonlinear transition.
SYSTEMS: dict[str, Entry] = {
    "EnVI": Entry("gpssm.methods.envi", "EnVI"),
    "PRSSM": Entry("gpssm.methods.prssm", "PRSSM"),
    "ODGPSSM": Entry("gpssm.methods.odgpssm", "ODGPSSM"),
    "VCDT": Entry("gpssm.methods.vcdt", "VCDT"),
    "VCDT (amortised)": Entry("gpssm.methods.vcdt", "VCDT", {"amortised": True, "name": "VCDT (amortised)"}),
    "vGPSSM": Entry("gpssm.methods.vgpssm", "VGPSSM"),
    "CO-GPSSM": Entry("gpssm.methods.cogpssm", "COGPSSM"),
    "DKF": Entry("gpssm.methods.dkf", "DKF"),
    "AD-EnKF": Entry("gpssm.methods.adenkf", "ADEnKF"),
}

# Baselines that belong in every table of forecasts.
BASELINES: dict[str, Entry] = {
    "LinearGaussian": Entry("gpssm.methods.linear_gaussian", "LinearGaussian"),
    "ARX": Entry("gpssm.methods.arx", "ARX"),
    "ARX(4)": Entry("gpssm.methods.arx", "ARX", {"order": 4, "name": "ARX(4)"}),
    "LastValue": Entry("gpssm.methods.last_value", "LastValue"),
    "TrainingMean": Entry("gpssm.methods.training_mean", "TrainingMean"),
}

METHODS = SYSTEMS | BASELINES

# Methods that see every sample once.
ONLINE: dict[str, Entry] = {
    "OEnVI": Entry("gpssm.methods.oenvi", "OEnVI"),
    "RGPSSM": Entry("gpssm.methods.rgpssm", "RGPSSM"),
    "SVMC": Entry("gpssm.methods.svmc", "SVMC"),
    "VJF": Entry("gpssm.methods.vjf", "VJF"),
}


def build(name: str, **choices: Any) -> Any:
    """The method called `name`, with those of the choices that it knows; it has a `fit`."""
    return _build(name, METHODS, choices)


def build_online(name: str, **choices: Any) -> Any:
    """The online method called `name`, with those of the choices that it knows; it has a `start`."""
    return _build(name, ONLINE, choices)


def _build(name: str, entries: dict[str, Entry], choices: dict[str, Any]) -> Any:
    found = [entry for known, entry in entries.items() if known.lower() == name.lower()]
    if not found:
        raise InvalidInput(f"method: expected one of {', '.join(entries)}, got {name!r}.")
    module, attribute, settings = found[0]
    method = getattr(importlib.import_module(module), attribute)
    known = inspect.signature(method).parameters
    return method(**{key: value for key, value in choices.items() if key in known} | dict(settings))
