"""All methods by name: what `gpssm fit`, every table and every figure can be asked for.

A new method is one file and one line here (`docs/extend.md`). Nothing is imported before it is built.
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
    "LastValue": Entry("gpssm.methods.naive", "LastValue"),
    "TrainingMean": Entry("gpssm.methods.naive", "TrainingMean"),
}

METHODS = SYSTEMS | BASELINES

# Methods that see every sample once.
ONLINE: dict[str, Entry] = {
    "OEnVI": Entry("gpssm.online.oenvi.method", "OEnVI"),
    "RGPSSM": Entry("gpssm.online.rgpssm", "RGPSSM"),
    "SVMC": Entry("gpssm.online.svmc.method", "SVMC"),
    "VJF": Entry("gpssm.online.vjf.method", "VJF"),
}


def build(name: str, **choices: Any) -> Any:
    """The method called `name`, with these choices; it has a `fit`."""
    return _build(name, METHODS, choices)


def build_online(name: str, **choices: Any) -> Any:
    """The online method called `name`, with these choices; it has a `start`."""
    return _build(name, ONLINE, choices)


def chosen(method: Any, call: str, defaults: Mapping[str, Any], choices: Mapping[str, Any]) -> Any:
    """A method that was handed in, which then is as it is; or the one of that name, with what was chosen of it.

    Args:
        method: a method, or its name.
        call: what the method is for: `"fit"`, or `"start"` for an online one.
        defaults: choices that are made for a method by name, if it has them and nothing else was chosen.
        choices: what was chosen, None where nothing was.

    >>> chosen("EnVI", "fit", {"state_dim": "auto"}, {"num_inducing": 10, "likelihood": None}).num_inducing
    10
    """
    made = {name: value for name, value in choices.items() if value is not None}
    if isinstance(method, str):
        by_name = build if call == "fit" else build_online
        return by_name(method, **(applicable(method, **defaults) | made))
    if not hasattr(method, call):
        raise InvalidInput(f"method: expected a name, or a method that has a `{call}`, got {method!r}.")
    if made:
        raise InvalidInput(f"{next(iter(made))}: expected None beside a method that is not given by name, {method!r}.")
    return method


def online_method(name: str) -> Any:
    """The class of the online method called `name`."""
    return _load(_find(name, ONLINE)[1])


def canonical(name: str) -> str:
    """The name of a method, online or not, as it is registered, whatever its case."""
    return _find(name, METHODS | ONLINE)[0]


def choices(name: str) -> tuple[str, ...]:
    """What can be chosen of the method called `name`, online or not; what makes it that one is settled."""
    entry = _find(name, METHODS | ONLINE)[1]
    return tuple(known for known in inspect.signature(_load(entry)).parameters if known not in entry.settings)


def applicable(name: str, **offered: Any) -> dict[str, Any]:
    """Those of the choices on offer that the method has: for tables, where methods of all kinds are given the same."""
    known = choices(name)
    return {choice: value for choice, value in offered.items() if choice in known}


def _build(name: str, entries: dict[str, Entry], chosen: dict[str, Any]) -> Any:
    name, entry = _find(name, entries)
    known = choices(name)
    for choice in chosen:
        if choice not in known:
            raise InvalidInput(f"{choice}: {name} has no such choice; expected none but {', '.join(known)}.")
    return _load(entry)(**chosen, **entry.settings)


def _find(name: str, entries: dict[str, Entry]) -> tuple[str, Entry]:
    """A method as it is registered, whatever the case of its name."""
    for known, entry in entries.items():
        if known.lower() == name.lower():
            return known, entry
    raise InvalidInput(f"method: expected one of {', '.join(entries)}, got {name!r}.")


def _load(entry: Entry) -> Any:
    return getattr(importlib.import_module(entry.module), entry.attribute)
