"""Every setting of a method, in words."""

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np


def spell(value: Any) -> str:
    """As `repr`, with the values of arrays, which modules such as kernels keep to themselves."""
    if is_dataclass(value) and not isinstance(value, type):
        parts = (f"{field.name}={spell(getattr(value, field.name))}" for field in fields(value))
        return f"{type(value).__name__}({', '.join(parts)})"
    return repr(np.asarray(value).tolist()) if hasattr(value, "dtype") else repr(value)
