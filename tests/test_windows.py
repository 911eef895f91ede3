"""Cutting recordings into windows: nothing lost, nothing invented, in order."""

import numpy as np
import pytest

from gpssm.training.windows import cut


def recordings(lengths, output_dim=2, input_dim=1):
    rng = np.random.default_rng(0)
    outputs = [rng.normal(size=(n, output_dim)) for n in lengths]
    for y in outputs:
        y[rng.random(y.shape) < 0.2] = np.nan
    return outputs, [rng.normal(size=(n, input_dim)) for n in lengths]


def chain(windows, last):
    """The windows of a recording in time order, found by walking the left pointers from its last one."""
    found = [last]
    while windows.left[found[-1]] >= 0:
        found.append(int(windows.left[found[-1]]))
    return found[::-1]


CASES = [((7, 4, 10, 1), 4), ((8, 8), 4), ((5, 12), 5), ((3, 6), 20), ((6,), 1)]


@pytest.mark.parametrize(("lengths", "length"), CASES)
def test_recordings_can_be_put_together_again(lengths, length):
    """Oracle: the recordings themselves, reassembled by following the left pointers."""
    outputs, inputs = recordings(lengths)
    windows = cut(outputs, inputs, length)
    ends = set(range(len(windows.left))) - set(windows.left.tolist())
    assert len(ends) == len(lengths)
    seen = []
    for last in sorted(ends):
        order = chain(windows, last)
        seen += order
        sequence = windows.sequence[last]
        assert set(windows.sequence[order]) == {sequence}
        active = np.concatenate([windows.active[b] for b in order]) > 0
        y, c = (np.concatenate([part[b] for b in order])[active] for part in (windows.outputs, windows.inputs))
        np.testing.assert_array_equal(y, outputs[sequence])
        np.testing.assert_array_equal(c, inputs[sequence])
    assert sorted(seen) == list(range(len(windows.left)))
    assert sorted(windows.sequence[sorted(ends)]) == list(range(len(lengths)))


@pytest.mark.parametrize(("lengths", "length"), CASES)
def test_padding_is_inactive_and_only_at_the_end_of_a_recording(lengths, length):
    outputs, inputs = recordings(lengths)
    windows = cut(outputs, inputs, length)
    assert windows.outputs.shape == (sum(-(-n // length) for n in lengths), length, 2)
    assert windows.inputs.shape == (*windows.outputs.shape[:2], 1)
    assert set(np.unique(windows.active)) <= {0.0, 1.0}
    assert windows.active.sum() == sum(lengths)
    padding = windows.active == 0
    assert np.isnan(windows.outputs[padding]).all()
    np.testing.assert_array_equal(windows.inputs[padding], 0.0)
    assert (np.diff(windows.active, axis=1) <= 0).all(), "a sample after padding"
    followed = windows.left[windows.left >= 0]
    assert (windows.active[followed] == 1).all(), "padding before the end of a recording"


def test_a_recording_starts_without_a_left_neighbour():
    windows = cut(*recordings((9, 3, 4)), 4)
    np.testing.assert_array_equal(windows.left, [-1, 0, 1, -1, -1])
    np.testing.assert_array_equal(windows.sequence, [0, 0, 0, 1, 2])


def test_number_of_observed_values_ignores_gaps_and_padding():
    """Oracle: counted in the recordings."""
    outputs, inputs = recordings((7, 10))
    expected = sum(int(np.isfinite(y).sum()) for y in outputs)
    assert cut(outputs, inputs, 4).num_observed == expected < 2 * 17


def test_without_inputs():
    outputs, _ = recordings((5,))
    windows = cut(outputs, [np.zeros((5, 0))], 3)
    assert windows.inputs.shape == (2, 3, 0)


def test_windows_know_where_they_are():
    windows = cut(*recordings((7, 10)), 4)
    np.testing.assert_array_equal(windows.position, [0, 4, 0, 4, 8])
