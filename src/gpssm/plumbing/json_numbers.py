"""Numbers in JSON's words."""

import math
from collections.abc import Callable
from typing import Any


def plain(value: Any, infinite: Callable[[float], str | None] = lambda value: None) -> Any:
    """The same in JSON's words, which have no NaN, here null, and no infinity, here what `infinite` returns.

    >>> plain({"rmse": float("nan"), "nlpd": [1.0, float("inf")]}, infinite=str)
    {'rmse': None, 'nlpd': [1.0, 'inf']}
    """
    if isinstance(value, dict):
        return {key: plain(item, infinite) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, infinite) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else infinite(value)
    return value
