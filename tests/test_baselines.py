"""The linear methods against closed forms, least squares and the joint Gaussian of a whole recording."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import multivariate_normal

import gpssm
from gpssm import metrics
from gpssm.filters.kalman import Gaussian
from gpssm.methods.arx import ARX
from gpssm.methods.linear_gaussian import LinearGaussian
from gpssm.methods.naive import LastValue, TrainingMean

DATA = Path(__file__).parents[2] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="needs the system identification series")


def simulate(length, seed, start=None):
    """Two outputs and two inputs of a stable system with one hidden state, in odd units."""
    rng = np.random.default_rng(seed)
    a = np.array([[0.7, 0.2, 0.3], [-0.2, 0.6, 0.1], [0.1, -0.4, 0.5]])
    b = np.array([[1.0, 0.0], [0.3, -0.5], [0.0, 0.8]])
    inputs = 5.0 + 3.0 * rng.normal(size=(length, 2))
    x, outputs = np.zeros(3) if start is None else np.asarray(start), []
    for c in inputs:
        x = a @ x + b @ (c - 5.0) + 0.5 * rng.normal(size=3)
        outputs.append([100.0, -3.0] + np.array([20.0, 0.1]) * (x[:2] + 0.3 * rng.normal(size=2)))
    return np.array(outputs), inputs


def with_gaps(outputs, share, seed=0):
    return np.where(np.random.default_rng(seed).random(outputs.shape) < share, np.nan, outputs)


OUTPUTS, INPUTS = simulate(200, 0)
METHODS = [TrainingMean(), LastValue(), ARX(order=2), LinearGaussian(3, max_steps=60)]


@pytest.fixture(scope="module", params=METHODS, ids=lambda method: method.name)
def fitted(request):
    """Every method, fitted to two recordings with gaps."""
    more = simulate(200, 1)
    return request.param.fit([with_gaps(OUTPUTS, 0.1), with_gaps(more[0], 0.1)], [INPUTS, more[1]])


class Joint:
    """The joint Gaussian of the states and outputs of a recording, in the user's units, without a filter."""

    def __init__(self, fitted, start, inputs):
        a, q, c, d, r = map(np.asarray, fitted.system)
        scaling, dx, length = fitted.scaling, fitted.state_dim, len(inputs)
        offsets = scaling.standardise_inputs(inputs) @ fitted.input_weight.T + fitted.bias
        mean, cov = map(np.asarray, start)
        means, covs = [], np.zeros((length, length, dx, dx))
        for t in range(length):
            mean, cov = a @ mean + offsets[t], a @ cov @ a.T + q
            means.append(mean)
            covs[t, t] = cov
            for s in range(t):
                covs[t, s] = a @ covs[t - 1, s]
                covs[s, t] = covs[t, s].T
        full = covs.transpose(0, 2, 1, 3).reshape(length * dx, length * dx)
        units, emit = np.tile(scaling.state_scale, length), np.kron(np.eye(length), scaling.output_scale[:, None] * c)
        self.dx, self.state_mean = dx, scaling.states(np.array(means)).ravel()
        self.output_mean = scaling.outputs(np.array(means) @ c.T + d).ravel()
        noise = np.kron(np.eye(length), scaling.output_scale[:, None] * r * scaling.output_scale)
        self.state_cov, self.cross = full * units[:, None] * units, units[:, None] * full @ emit.T
        self.output_cov = emit @ full @ emit.T + noise

    def states(self, y, upto):
        """Means and covariances of all states given the numbers before `upto`."""
        seen = np.flatnonzero(~np.isnan(y[:upto]).ravel())
        gain = np.linalg.solve(self.output_cov[np.ix_(seen, seen)], self.cross[:, seen].T).T
        mean = self.state_mean + gain @ (y.ravel()[seen] - self.output_mean[seen])
        cov = self.state_cov - gain @ self.cross[:, seen].T
        length = len(y)
        blocks = cov.reshape(length, self.dx, length, self.dx)[np.arange(length), :, np.arange(length)]
        return mean.reshape(length, self.dx), blocks

    def log_likelihood(self, y):
        seen = np.flatnonzero(~np.isnan(y).ravel())
        law = multivariate_normal(self.output_mean[seen], self.output_cov[np.ix_(seen, seen)])
        return law.logpdf(y.ravel()[seen])


def close(actual, expected, unit):
    np.testing.assert_allclose(actual / unit, expected / unit, atol=1e-7)


def test_filter_smoother_and_likelihood_are_exact(fitted):
    """Oracle: conditioning of the joint, in the user's units, with gaps; Q or R is singular in three of four."""
    y, c = simulate(9, 2)
    y = with_gaps(y, 0.3, seed=3)
    y[0] = y[5] = np.nan
    joint, units = Joint(fitted, fitted.prior, c), fitted.scaling.state_scale
    filtered, smoothed = fitted.filter(y, c), fitted.smooth(y, c)
    for t in range(len(y)):
        mean, cov = joint.states(y, t + 1)
        close(filtered.mean[t], mean[t], units)
        close(filtered.cov[t], cov[t], units[:, None] * units)
    mean, cov = joint.states(y, len(y))
    close(smoothed.mean, mean, units)
    close(smoothed.cov, cov, units[:, None] * units)
    expected = joint.log_likelihood(y)
    for value in (filtered.log_likelihood, smoothed.log_likelihood, fitted.log_likelihood(y, c)):
        assert value == pytest.approx(expected, rel=1e-9)


def test_forecasts_have_the_exact_law(fitted):
    """Oracle: moments of the joint from the filtered state, across steps and channels, within Monte Carlo error."""
    y, c = simulate(30, 4)
    y[18:20] = np.nan
    paths = fitted.forecast(10, c[20:], state=fitted.filter(y[:20], c[:20]), num_paths=40_000)
    scale = fitted.scaling.state_scale
    state = fitted.filter(y[:20], c[:20])
    start = Gaussian(fitted.scaling.standardise_states(state.mean[-1]), state.cov[-1] / (scale[:, None] * scale))
    joint = Joint(fitted, start, c[20:])
    flat, sd = paths.samples.reshape(len(paths.samples), -1), np.sqrt(np.diag(joint.output_cov))
    np.testing.assert_allclose((flat.mean(axis=0) - joint.output_mean) / sd, 0.0, atol=5 / np.sqrt(40_000))
    np.testing.assert_allclose(
        np.cov(flat.T) / np.outer(sd, sd), joint.output_cov / np.outer(sd, sd), atol=5 * np.sqrt(2 / 40_000)
    )
    assert paths.states.shape == (40_000, 10, fitted.state_dim)
    again = fitted.forecast(10, c[20:], state=fitted.filter(y[:20], c[:20], seed=9), num_paths=40_000)
    np.testing.assert_array_equal(again.samples, paths.samples)


def test_a_recording_can_be_continued(fitted):
    """Filtered in two parts: the same states, and likelihoods that add up."""
    y, c = with_gaps(OUTPUTS[:60], 0.2), INPUTS[:60]
    whole, first = fitted.filter(y, c), fitted.filter(y[:23], c[:23])
    rest = fitted.filter(y[23:], c[23:], state=first)
    close(rest.mean, whole.mean[23:], fitted.scaling.state_scale)
    close(rest.cov, whole.cov[23:], fitted.scaling.state_scale[:, None] * fitted.scaling.state_scale)
    assert first.log_likelihood + rest.log_likelihood == pytest.approx(whole.log_likelihood, rel=1e-9)


def test_one_step_predictions_are_those_of_the_joint(fitted):
    """Oracle: every sample conditioned on those before it; and the same when the recording is continued."""
    y, c = simulate(8, 11)
    joint = Joint(fitted, fitted.prior, c)
    mean, std = fitted.one_step(y, c)
    for t in range(len(y)):
        now, before = np.arange(2 * t, 2 * t + 2), np.arange(2 * t)
        gain = np.linalg.solve(joint.output_cov[np.ix_(before, before)], joint.output_cov[np.ix_(before, now)]).T
        expected = joint.output_mean[now] + gain @ (y.ravel()[before] - joint.output_mean[before])
        cov = joint.output_cov[np.ix_(now, now)] - gain @ joint.output_cov[np.ix_(before, now)]
        close(mean[t], expected, fitted.scaling.output_scale)
        close(std[t], np.sqrt(np.diag(cov)), fitted.scaling.output_scale)
    later = fitted.one_step(y[5:], c[5:], state=fitted.filter(y[:5], c[:5]))
    close(later[0], mean[5:], fitted.scaling.output_scale)


def test_members_are_draws_from_the_last_state(fitted):
    states = fitted.filter(OUTPUTS[:50], INPUTS[:50])
    spread = np.sqrt(np.maximum(np.diagonal(states.cov[-1]), 0.0))
    error = np.abs(states.members.mean(axis=0) - states.mean[-1])
    assert (error <= 5 * spread / np.sqrt(len(states.members)) + 1e-9 * fitted.scaling.state_scale).all()


def test_forecasts_continue_the_last_recording(fitted):
    """By default from its end, as the filter sees it; and the filter through a gap is that forecast's mean."""
    y, c = simulate(200, 1)
    y = with_gaps(y, 0.1)
    future = np.full((10, 2), 5.0)
    paths = fitted.forecast(10, future)
    for state in (fitted.end, fitted.filter(y, c)):
        close(fitted.forecast(10, future, state=state).samples, paths.samples, fitted.scaling.output_scale)
    through = fitted.filter(np.vstack([y, np.full((10, 2), np.nan)]), np.vstack([c, future]))
    spread = paths.std + 1e-9
    np.testing.assert_allclose((through.mean[-10:, :2] - paths.mean) / spread, 0.0, atol=5 / np.sqrt(500))
    assert through.log_likelihood == pytest.approx(fitted.log_likelihood(y, c), rel=1e-12)


def test_the_future_is_not_looked_at(fitted):
    """Poisoned with NaN after the sample a forecast starts from: the same forecast, bit for bit."""
    poisoned = OUTPUTS.copy()
    poisoned[100:] = np.nan
    paths = [fitted.forecast(5, INPUTS[100:], state=fitted.filter(y[:100], INPUTS)) for y in (OUTPUTS, poisoned)]
    np.testing.assert_array_equal(paths[0].samples, paths[1].samples)


def test_transition_and_summary_are_the_system_in_the_users_units(fitted):
    """Oracle: the mean of a step of the filter, from a known state; and, for the gains, a long run with inputs held."""
    rows = {row.name: row.value for row in fitted.summary().rows}
    dx, weight = fitted.state_dim, rows["transition.weight"]
    x = np.random.default_rng(0).normal(size=(1, dx)) * fitted.scaling.state_scale + fitted.scaling.state_shift
    known = fitted.end._replace(mean=x, cov=np.zeros((1, dx, dx)))
    moved = fitted.filter(np.full((1, 2), np.nan), INPUTS[:1], state=known).mean
    mean, var = fitted.transition(np.column_stack([x, INPUTS[:1]]))
    np.testing.assert_allclose(mean, moved, rtol=1e-9)
    np.testing.assert_allclose(
        weight @ np.concatenate([x[0], INPUTS[0]]) + rows["transition.bias"], moved[0], rtol=1e-8
    )
    assert (var == 0).all()
    predicted = fitted.one_step(np.full((1, 2), np.nan), INPUTS[:1], state=known)
    np.testing.assert_allclose(rows["emission.weight"] @ mean[0] + rows["emission.bias"], predicted[0][0], rtol=1e-8)
    noise = rows["emission.weight"] @ rows["process_noise.cov"] @ rows["emission.weight"].T + rows["obs_noise.cov"]
    np.testing.assert_allclose(np.sqrt(np.diag(noise)), predicted[1][0], rtol=1e-8)
    assert rows["poles.modulus"].max() == pytest.approx(np.abs(np.linalg.eigvals(weight[:, :dx])).max())
    if rows["poles.modulus"].max() < 1:
        held = [np.tile(INPUTS[0] + shift, (400, 1)) for shift in ([0.0, 0.0], [0.0, 1.0])]
        at_rest = [fitted.one_step(np.full((400, 2), np.nan), c)[0][-1] for c in held]
        np.testing.assert_allclose(at_rest[1] - at_rest[0], rows["gain"][:, 1], rtol=1e-6)


def test_what_is_known_of_the_training_data(fitted):
    more = simulate(200, 1)
    recordings = zip([with_gaps(OUTPUTS, 0.1), with_gaps(more[0], 0.1)], [INPUTS, more[1]], strict=True)
    assert fitted.num_samples == 400 and fitted.output_names == ("y1", "y2") and fitted.input_names == ("u1", "u2")
    summary = fitted.summary().as_dict()
    assert summary["log_likelihood"] == pytest.approx(sum(fitted.log_likelihood(y, c) for y, c in recordings))
    assert str(fitted.summary()).startswith(f"{fitted.method}: linear, {fitted.state_dim} state(s), log-likelihood ")
    before = dataclasses.replace(fitted, training_log_likelihood=None).summary()  # as in files of earlier versions
    assert str(before).splitlines()[0] == f"{fitted.method}: linear, {fitted.state_dim} state(s)"


def test_the_filter_is_exact_by_any_right_name(fitted):
    exact = fitted.filter(OUTPUTS, INPUTS, filter="kalman")
    np.testing.assert_array_equal(exact.mean, fitted.filter(OUTPUTS, INPUTS).mean)
    with pytest.raises(ValueError, match="expected one of kalman, got 'particle': the model is linear"):
        fitted.filter(OUTPUTS, INPUTS, filter="particle")


def test_save_and_load_bit_for_bit(fitted, tmp_path):
    fitted.save(tmp_path / "a.gpssm")
    loaded = gpssm.load(tmp_path / "a.gpssm")
    np.testing.assert_array_equal(loaded.forecast(5, INPUTS).samples, fitted.forecast(5, INPUTS).samples)
    np.testing.assert_array_equal(loaded.filter(OUTPUTS, INPUTS).cov, fitted.filter(OUTPUTS, INPUTS).cov)
    assert loaded.history == fitted.history and repr(loaded) == repr(fitted)
    loaded.save(tmp_path / "b.gpssm")
    assert (tmp_path / "a.gpssm").read_bytes() == (tmp_path / "b.gpssm").read_bytes()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: f.filter(OUTPUTS[:, :1], INPUTS), "outputs: expected 2 column"),
        (lambda f: f.filter(OUTPUTS), "inputs: missing; the model was fitted with 2"),
        (lambda f: f.filter(OUTPUTS, INPUTS[:5]), "inputs: 5 rows, but 200 are needed"),
        (lambda f: f.forecast(0, INPUTS), "horizon: expected a whole number"),
        (lambda f: f.forecast(5, INPUTS, num_paths=1), "num_paths: expected a whole number of at least 2"),
        (lambda f: f.forecast(5, INPUTS, state=np.zeros(2)), "state: expected what `filter` returns, got ndarray"),
        (
            lambda f: f.forecast(5, INPUTS, state=f.filter(OUTPUTS, INPUTS)._replace(members=np.zeros((3, 17)))),
            r"state: has 17 dimension\(s\); expected ",
        ),
    ],
)
def test_bad_calls_get_a_sentence(fitted, call, message):
    with pytest.raises(ValueError, match=message):
        call(fitted)


def test_training_mean_is_the_mean_and_the_variance():
    y = with_gaps(OUTPUTS, 0.2)
    f = TrainingMean().fit(y)
    paths = f.forecast(3, num_paths=160_000)
    np.testing.assert_allclose(paths.mean, np.tile(np.nanmean(y, axis=0), (3, 1)), rtol=0.01)
    np.testing.assert_allclose(paths.std, np.tile(np.nanstd(y, axis=0), (3, 1)), rtol=0.02)
    np.testing.assert_allclose(f.filter(OUTPUTS).mean, np.tile(np.nanmean(y, axis=0), (200, 1)))
    assert f.state_dim == 2 and f.input_dim == 0


def test_last_value_across_gaps():
    """Increments 2 over one step, -3 over two and 4 over one: variance (4 + 9/2 + 16) / 3 a step."""
    y = np.array([1.0, 3.0, np.nan, 0.0, 4.0, np.nan])
    f = LastValue().fit(y)
    variance = (4 + 4.5 + 16) / 3
    states = f.filter(y)
    np.testing.assert_allclose(states.mean[1:, 0], [3, 3, 0, 4, 4], atol=1e-12)
    np.testing.assert_allclose(states.cov[1:, 0, 0], [0, variance, 0, 0, variance], atol=1e-12)
    paths = f.forecast(20, num_paths=20_000)
    np.testing.assert_allclose(paths.samples.var(axis=0)[:, 0], variance * np.arange(2, 22), rtol=0.06)
    assert np.abs(paths.mean - 4.0).max() < 5 * np.sqrt(variance * 21 / 20_000)


def test_last_value_of_recordings_that_stand_still():
    """No increment at all: a variance of nearly zero, and finite likelihoods."""
    f = LastValue().fit([np.ones(5), np.full(4, 2.0)])
    assert np.isfinite(f.log_likelihood(np.ones(5)))
    np.testing.assert_allclose(f.forecast(5).samples, 2.0, atol=1e-3)
    with pytest.raises(ValueError, match="channel 1 has at most one value in every recording"):
        LastValue().fit([np.array([[1.0, 1.0], [2.0, np.nan]]), np.array([[1.0, 2.0], [2.0, np.nan]])])


def in_user_units(fitted):
    """A, B and b of `x_t = A x_{t-1} + B c_t + b` in the user's units."""
    s = fitted.scaling
    a = s.state_scale[:, None] * np.asarray(fitted.system.transition) / s.state_scale
    b = s.state_scale[:, None] * fitted.input_weight / s.input_scale
    return a, b, s.state_shift + s.state_scale * fitted.bias - a @ s.state_shift - b @ s.input_shift


@pytest.mark.parametrize("order", [1, 3])
def test_arx_is_least_squares(order):
    """Oracle: numpy.linalg.lstsq in the user's units, equation by equation, on two recordings with gaps."""
    recordings = [(with_gaps(y, 0.05), c) for y, c in (simulate(80, 5), simulate(60, 6))]
    fitted = ARX(order=order).fit([y for y, _ in recordings], [c for _, c in recordings])
    design, target = [], []
    for y, c in recordings:
        for t in range(order, len(y)):
            lags = [y[t - i] for i in range(1, order + 1)] + [c[t - i] for i in range(1, order)]
            row = np.concatenate([*lags, c[t], [1.0]])
            if np.isfinite(row).all() and np.isfinite(y[t]).all():
                design.append(row)
                target.append(y[t])
    design, target = np.array(design), np.array(target)
    weight, residual, _, _ = np.linalg.lstsq(design, target, rcond=None)
    a, b, bias = in_user_units(fitted)
    dx = 2 * order + 2 * (order - 1)
    assert fitted.state_dim == dx
    close(a[:2], weight[:dx].T, fitted.scaling.output_scale[:, None] / fitted.scaling.state_scale)
    close(b[:2], weight[dx:-1].T, fitted.scaling.output_scale[:, None] / fitted.scaling.input_scale)
    np.testing.assert_allclose(bias[:2], weight[-1], rtol=1e-8)
    variances = np.diagonal(fitted.system.process_cov)[:2] * fitted.scaling.output_scale**2
    np.testing.assert_allclose(variances, residual / (len(design) - design.shape[1]), rtol=1e-6)
    # The state remembers: after a filtered sample it holds the outputs and inputs before.
    y, c = simulate(20, 7)
    expected = [y[-i] for i in range(1, order + 1)] + [c[-i] for i in range(1, order)]
    np.testing.assert_allclose(fitted.filter(y, c).mean[-1], np.concatenate(expected), rtol=1e-9)


def autoregression(coefficients, length, seed, scale=1.0):
    rng = np.random.default_rng(seed)
    p, y = len(coefficients), np.zeros(length + 200)
    for t in range(p, len(y)):
        y[t] = np.dot(coefficients, y[t - p : t][::-1]) + scale * rng.normal()
    return y[200:]


def test_ar1_forecasts_in_closed_form():
    """Mean m + a^k (y_T - m) and variance q (1 - a^2k) / (1 - a^2) at every horizon, a and q as fitted."""
    y = 7.0 + autoregression([0.9], 3000, 0)
    fitted = ARX(order=1).fit(y)
    a, _, bias = in_user_units(fitted)
    a, mean = a[0, 0], bias[0] / (1 - a[0, 0])
    assert abs(a - 0.9) < 0.03 and abs(mean - 7.0) < 1.0
    variance = float(fitted.system.process_cov[0, 0] * fitted.scaling.output_scale[0] ** 2)
    assert abs(variance - 1.0) < 0.1
    paths, steps = fitted.forecast(40, num_paths=40_000), np.arange(1, 41)
    expected = variance * (1 - a ** (2 * steps)) / (1 - a**2)
    np.testing.assert_allclose(paths.samples.var(axis=0)[:, 0], expected, rtol=5 * np.sqrt(2 / 40_000))
    error = (paths.mean[:, 0] - mean - a**steps * (y[-1] - mean)) / np.sqrt(expected)
    assert np.abs(error).max() < 5 / np.sqrt(40_000)


def test_arx_finds_the_order():
    """AR(3) with a dominant third lag: fewer lags forecast badly; the coefficients are recovered."""
    truth = [0.2, -0.1, 0.7]
    fitted = ARX(max_order=6).fit(autoregression(truth, 4000, 1))
    assert fitted.state_dim >= 3
    weight = in_user_units(fitted)[0][0]
    np.testing.assert_allclose(weight[:3], truth, atol=0.05)
    np.testing.assert_allclose(weight[3:], 0.0, atol=0.06)


def test_arx_order_from_many_recordings_with_gaps():
    recordings = [simulate(40, seed) for seed in range(6)]
    fitted = ARX(max_order=4).fit([with_gaps(y, 0.05, seed=8) for y, _ in recordings], [c for _, c in recordings])
    y, c = simulate(100, 20)
    assert (
        metrics.rmse(fitted.forecast(50, c[50:], state=fitted.filter(y[:50], c)).mean / [20, 0.1], y[50:] / [20, 0.1])
        < 1.2
    )


def test_unstable_orders_neither_win_nor_raise():
    """Growing data, where every order is unstable; and a double integrator, where only some are."""
    growing = 1.5 ** np.arange(40.0) * (1 + 1e-3 * np.random.default_rng(2).normal(size=40))
    fitted = ARX(max_order=3).fit(growing)
    assert spectral_radius(fitted) > 1 and np.isfinite(fitted.forecast(20).samples).all()
    walk = np.cumsum(np.cumsum(np.random.default_rng(0).normal(size=120)))
    assert spectral_radius(ARX(order=4).fit(walk)) > 1.001
    assert spectral_radius(ARX(max_order=4).fit(walk)) <= 1 + 1e-6


def spectral_radius(fitted):
    return np.max(np.abs(np.linalg.eigvals(np.asarray(fitted.system.transition))))


def test_arx_of_noise_free_data():
    """A perfect fit leaves no residual: likelihoods stay finite, forecasts follow the sine."""
    y = np.sin(0.3 * np.arange(120))
    fitted = ARX(order=2).fit(y[:100])
    assert np.isfinite(fitted.log_likelihood(y[:100]))
    np.testing.assert_allclose(fitted.forecast(20).mean[:, 0], y[100:], atol=1e-3)


def test_too_short_is_said():
    with pytest.raises(ValueError, match=r"outputs: 4 sample\(s\) have all of the 6 before them; expected more than 7"):
        ARX(order=6).fit(np.arange(10.0) ** 2)
    assert ARX(max_order=20).fit(np.random.default_rng(4).normal(size=12)).state_dim <= 4
    with pytest.raises(ValueError, match=r"outputs: 2 sample\(s\) have all of the 1 before them"):
        ARX().fit([1.0, 2.0, 4.0])
    with pytest.raises(ValueError, match=r"outputs: 10 number\(s\); expected more than 10 for state_dim=4"):
        LinearGaussian().fit(np.arange(10.0) ** 2)
    with pytest.raises(ValueError, match="state_dim: got 1 for 2 outputs; expected at least 2"):
        LinearGaussian(1).fit(OUTPUTS)


@pytest.mark.parametrize("make", [lambda: ARX(order=0), lambda: ARX(max_order=1.5), lambda: LinearGaussian(0)])
def test_bad_settings_get_a_sentence(make):
    with pytest.raises(ValueError, match="expected a whole number of at least 1"):
        make()


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_bad_data_get_a_sentence(method):
    with pytest.raises(ValueError, match="channel 0 is constant"):
        method.fit(np.ones(50))
    with pytest.raises(ValueError, match="inputs: 20 rows, but 200 are needed"):
        method.fit(OUTPUTS, INPUTS[:20])


def test_maximum_likelihood_is_at_least_that_of_the_truth():
    """Oracle: the likelihood of the system that made the data; and forecasts nearly as good as its own."""
    truth = LinearGaussian(3, max_steps=1).fit(OUTPUTS, INPUTS)
    a = np.array([[0.7, 0.2, 0.3], [-0.2, 0.6, 0.1], [0.1, -0.4, 0.5]])
    b = np.array([[1.0, 0.0], [0.3, -0.5], [0.0, 0.8]])
    unit = np.array([20.0, 0.1, 1.0])
    scaling = truth.scaling
    s, shift = scaling.state_scale, (scaling.state_shift - [100.0, -3.0, 0.0]) / unit
    true_a = (unit / s)[:, None] * a * (s / unit)
    truth = dataclasses.replace(
        truth,
        system=truth.system._replace(
            transition=true_a,
            process_cov=np.diag((0.5 * unit / s) ** 2),
            obs_cov=np.diag((0.3 * unit / s)[:2] ** 2),
        ),
        input_weight=(unit / s)[:, None] * b * scaling.input_scale,
        bias=unit / s * (a @ shift - shift + b @ (scaling.input_shift - 5.0)),
    )
    seen = []
    fitted = LinearGaussian(3).fit(OUTPUTS, INPUTS, progress=seen.append)
    likelihood = fitted.log_likelihood(OUTPUTS, INPUTS)
    assert likelihood > truth.log_likelihood(OUTPUTS, INPUTS)
    assert likelihood == pytest.approx(fitted.history.terms["likelihood"][-1], rel=1e-9)
    assert np.all(np.diff(fitted.history.elbo) >= 0) and [p.step for p in seen] == fitted.history.step
    y, c = simulate(200, 9)
    errors = [metrics.rmse(f.forecast(150, c[50:], state=f.filter(y[:50], c)).mean / unit[:2], y[50:] / unit[:2])
              for f in (fitted, truth)]  # fmt: skip
    assert errors[0] < 1.1 * errors[1]


def test_linear_gaussian_is_stable_where_the_data_are_not():
    """A double integrator: eigenvalues stay inside the unit circle, at next to no cost in likelihood.

    Oracle: AR(2), of which the double integrator is one.
    """
    walk = np.cumsum(np.cumsum(np.random.default_rng(10).normal(size=150)))
    fitted = LinearGaussian(2).fit(walk)
    assert spectral_radius(fitted) < 1
    assert fitted.log_likelihood(walk) > ARX(order=2).fit(walk).log_likelihood(walk) - 5


@needs_data
@pytest.mark.parametrize(
    ("method", "name", "low", "high"),
    [
        (TrainingMean(), "dryer", 0.81, 0.84),
        (TrainingMean(), "gas_furnace", 3.35, 3.45),
        (ARX(order=4), "dryer", 0.115, 0.13),
        (ARX(order=4), "gas_furnace", 1.15, 1.25),
        (ARX(), "dryer", 0.11, 0.125),
        (ARX(), "ballbeam", 0.0, 0.073),
        (LinearGaussian(), "dryer", 0.11, 0.125),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_free_run_of_the_second_half(method, name, low, high):
    """Learned from the first half, run freely through the second: the error that linear models are known to have."""
    u, y = np.loadtxt(DATA / f"{name}.csv", delimiter=",", skiprows=1).T
    half = len(y) // 2
    fitted = method.fit(y[:half], u[:half])
    paths = fitted.forecast(len(y) - half, u[half:], num_paths=1000)
    assert low < metrics.rmse(paths.mean, y[half:]) < high
