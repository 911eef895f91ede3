"""Cutting recordings into windows: nothing lost, nothing invented, in order."""

import jax.numpy as jnp
import numpy as np
import pytest

from gpssm.training.windows import batch, cut, filled_up, handed_on


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


def test_windows_with_a_run_in_start_early_and_hold_every_sample_once_after_it():
    """Oracle: the recordings themselves."""
    outputs, inputs = recordings((7, 10))
    plain, early = cut(outputs, inputs, 4), cut(outputs, inputs, 4, run_in=2)
    assert early.outputs.shape == (5, 6, 2)
    np.testing.assert_array_equal(early.outputs[:, 2:], plain.outputs)
    np.testing.assert_array_equal(early.inputs[:, 2:], plain.inputs)
    np.testing.assert_array_equal(early.position, plain.position - 2)
    for b, left in enumerate(plain.left):
        if left < 0:
            assert not early.active[b, :2].any() and np.isnan(early.outputs[b, :2]).all()
        else:
            np.testing.assert_array_equal(early.outputs[b, :2], plain.outputs[left, -2:])
            np.testing.assert_array_equal(early.inputs[b, :2], plain.inputs[left, -2:])


def test_windows_in_which_nothing_happens_fill_up_to_few_numbers():
    windows = cut(*recordings((7, 30)), 4)
    filled = filled_up(windows)
    assert (len(windows.left), len(filled.left), int(filled.number)) == (10, 10, 10)
    filled = filled_up(cut(*recordings((7, 33)), 4))
    assert (len(filled.left), int(filled.number)) == (12, 11)
    assert np.isnan(filled.outputs[11:]).all() and not filled.active[11:].any() and (filled.left[11:] == -1).all()


def test_a_batch_takes_every_window_equally_often_and_stands_for_all():
    """Oracle: the sum over all windows, and relative frequencies of 4000 batches."""
    windows = filled_up(cut(*recordings((41,)), 4))  # 11 of them
    rng = np.random.default_rng(0)
    draws = rng.uniform(size=(4000, 3))
    counts, total = np.zeros(12), 0.0
    for uniform in draws:
        some = batch(windows, jnp.asarray(uniform))
        chosen = np.asarray(some.chosen)
        counts[chosen] += 1
        total += float(np.nansum(windows.active[chosen]) / some.share) / len(draws)
        np.testing.assert_array_equal(some.windows.left, windows.left[chosen])
    assert counts[11] == 0
    np.testing.assert_allclose(counts[:11] / len(draws), 3 / 11, atol=0.03)
    np.testing.assert_allclose(total, 41, atol=0.5)


def test_the_ends_of_a_batch_are_handed_to_the_right_neighbours_of_the_same_recording():
    windows = cut(*recordings((8, 8)), 4)
    carry, ends = jnp.zeros((4, 1, 1)), jnp.array([[[1.0]], [[2.0]], [[3.0]]])
    moved = handed_on(windows, jnp.array([0, 1, 3]), carry, ends)
    assert moved[:, 0, 0].tolist() == [0.0, 1.0, 0.0, 0.0]


def test_without_inputs():
    outputs, _ = recordings((5,))
    windows = cut(outputs, [np.zeros((5, 0))], 3)
    assert windows.inputs.shape == (2, 3, 0)


def test_windows_know_where_they_are():
    windows = cut(*recordings((7, 10)), 4)
    np.testing.assert_array_equal(windows.position, [0, 4, 0, 4, 8])
