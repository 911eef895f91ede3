"""How long samples wait for their estimates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpssm.live.delays import Delays


@given(st.lists(st.floats(1e-6, 100.0), min_size=1, max_size=60))
def test_median_and_largest(seconds: list[float]) -> None:
    """Against the sorted list: to a percent, and exactly."""
    delays = Delays()
    delays.add(1e3)  # the first does not count
    for each in seconds:
        delays.add(each)
    assert delays.median == pytest.approx(np.sort(seconds)[len(seconds) // 2], rel=0.0101)
    assert delays.largest == max(seconds) and delays.first == 1e3


def test_what_is_said() -> None:
    delays = Delays()
    assert str(delays) == ""
    delays.add(2.04)
    assert str(delays) == "From the first sample to its estimate: 2.0 s."
    delays.add(0.00042)
    assert "0.42 ms in the median, 0.42 ms at most; 2.0 s for the first." in str(delays)
