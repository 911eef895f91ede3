"""
The kink function of the paper
==============================

One state, one function with a kink, 600 noisy samples: the smallest system that a line cannot follow, and the first
experiment of the paper (:doc:`/paper`). Since the true function is known, it can be seen what :class:`gpssm.EnVI`
learns of it, how far off it is, and what its band is worth; then what becomes of all three as the noise grows.
"""

# %%
# What there is to see
# --------------------
# The state moves by x\ :sub:`t` = f(x\ :sub:`t-1`) + noise, and is read with noise. All numbers are without a unit
# here. The noise that moves the state has a standard deviation of 0.05, that of the readings one of 0.28; the package
# takes variances, which are the squares.

import matplotlib.pyplot as plt
import numpy as np

import gpssm
from gpssm.plots import BLUE, GREY, ORANGE

PROCESS_SD = 0.05
LOW, MIDDLE, HIGH = 0.09, 0.28, 0.89  # standard deviations of the readings


def record(reading_sd, seed=0):
    """600 samples; f is the same for all seeds and all noises."""
    return gpssm.datasets.kink(length=600, process_noise=PROCESS_SD**2, obs_noise=reading_sd**2, seed=seed)


data = record(MIDDLE)
f = gpssm.datasets.kink_function
x = np.linspace(-3.15, 1.15, 100)  # where the paper compares, and where the states are

fig, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained", width_ratios=(3, 2))
left.plot(data.outputs[:80], ".", color=ORANGE, ms=4, label="readings")
left.plot(data.states[:80], color=GREY, lw=1, label="state")
left.set(xlabel="sample", title="The first 80 of 600 samples", ylim=(-4.5, 3))
left.legend(frameon=False, fontsize=8, ncols=2, loc="upper left")
right.plot(data.outputs[:-1], data.outputs[1:], ".", color=ORANGE, ms=3, alpha=0.6)
right.plot(x, f(x), color=GREY, lw=2, label="true f")
right.set(xlabel="$y_{t-1}$", ylabel="$y_t$", title="Every reading over the one before")
right.legend(frameon=False, fontsize=8, loc="lower left")
plt.show()

# %%
# A curve through the points on the right is not f. Readings are noisy in *both* directions: what lies at -1 may belong
# to a state of -0.7 as well, and a regression draws all of them to one flat average. A state-space model keeps the
# state and what was read of it apart.
#
# Learn it
# --------
# One state, 15 inducing points; the noises are learned with f. Nothing is said about the kink. (The schedule is short
# to keep this page quick; leave it out of your own, a fit then ends when nothing is gained any more.)

envi = gpssm.EnVI(state_dim=1, num_inducing=15, schedule=gpssm.Schedule(max_steps=250))
fitted = envi.fit(data.outputs, seed=0)

fig, (above, below) = plt.subplots(2, figsize=(8, 5.2), layout="constrained", sharex=True, height_ratios=(3, 2))
gpssm.plots.transition(fitted, truth=f, states=data.states, span=(-4, 1.8), ax=above)
above.set(title="What was learned, over the truth", ylim=(-7.5, 2), xlabel="")
wide = np.linspace(-4, 1.8, 300)
mean, var = (part[:, 0] for part in fitted.transition(wide[:, None]))
off, band = mean - f(wide), 1.96 * np.sqrt(var)
below.fill_between(wide, off - band, off + band, color=BLUE, alpha=0.22, lw=0)
below.plot(wide, off, color=BLUE, lw=2)
below.axhline(0, color=ORANGE, lw=1.5, ls="--")
below.plot(data.states, np.full(len(data.states), -0.47), "|", color=GREY, ms=6, alpha=0.3)
below.set(title="The same, minus the true f; where the states are", ylim=(-0.5, 0.5))
below.set(xlabel="$x_{t-1}$", ylabel="difference of $x_t$")
plt.show()

# %%
# The blue points are the *inducing points*: places at which the values of f are learned, and between which a Gaussian
# process fills in. They start on a grid over the readings and are moved in the course of the fit. The grey dots are the
# true states, which the fit has not seen.
#
# A number for it
# ---------------
# The mean squared error of f, on the paper's hundred points. Beside it stand the best line,
# :class:`gpssm.ARX` with a single lag, and a polynomial through the pairs of readings: neither has a Gaussian process,
# nor a state.


def errors(fitted, data):
    """Mean squared errors of EnVI's f, of a polynomial through pairs of readings, and of a line."""
    pairs = data.outputs[:-1, 0], data.outputs[1:, 0]
    polynomial = np.polynomial.Polynomial.fit(*pairs, deg=5)(x)
    line = gpssm.ARX(order=1).fit(data.outputs).transition(x[:, None])[0][:, 0]
    learned = fitted.transition(x[:, None])[0][:, 0]
    return {
        "EnVI": np.mean((learned - f(x)) ** 2),
        "polynomial": np.mean((polynomial - f(x)) ** 2),
        "line": np.mean((line - f(x)) ** 2),
    }


for name, error in errors(fitted, data).items():
    print(f"{name:10} {error:7.4f}")


# %%
# More noise, less noise
# ----------------------
# The same system, read with a third of the noise and with three times as much. With the loudest sensor the noise is
# not much smaller than the spread of the states themselves. All three recordings have the same states.

levels = {"low": LOW, "middle": MIDDLE, "high": HIGH}
recordings = {name: record(sd) for name, sd in levels.items()}
fits = {name: fitted if name == "middle" else envi.fit(each.outputs, seed=0) for name, each in recordings.items()}

fig, axes = plt.subplots(1, 3, figsize=(8, 3.3), layout="constrained", sharey=True)
for ax, (name, each) in zip(axes, fits.items(), strict=True):
    gpssm.plots.transition(each, truth=f, span=(-3.8, 1.6), ax=ax)
    ax.plot(recordings[name].outputs[:-1], recordings[name].outputs[1:], ".", color=ORANGE, ms=2, alpha=0.25, zorder=0)
    ax.set(title=f"{name} noise: {levels[name]}", ylim=(-5, 3))
    ax.legend().remove() if name != "low" else ax.legend(frameon=False, fontsize=7, loc="lower left")
    ax.label_outer()
plt.show()

print("            MSE of f                     noise of readings   noise of states   truth in")
print("noise       EnVI  polynomial    line      learned     true   learned    true   95% band")
for name, each in fits.items():
    learned = each.summary().as_dict()["parameters"]
    reading, process = (np.ravel(learned[f"{of}_noise.variance"]["value"])[0] ** 0.5 for of in ("obs", "process"))
    mean, var = (part[:, 0] for part in each.transition(x[:, None]))
    inside = np.mean(np.abs(mean - f(x)) < 1.96 * np.sqrt(var))
    mse = "{EnVI:8.4f} {polynomial:11.4f} {line:7.4f}".format(**errors(each, recordings[name]))
    print(f"{name:7} {mse} {reading:12.3f} {levels[name]:8.3f} {process:9.3f} {PROCESS_SD:7.3f} {inside:10.2f}")

# %%
# EnVI's error grows with the noise, by more than an order of magnitude from the first row to the last; that of the line
# hardly changes, since it was never noise that a line suffered from. The polynomial is several times as wrong as EnVI
# at all three: the more noise there is in what it takes for x, the less it bends, and more samples would not help it.
#
# The noise of the readings is found to some per cent. That of the states is not where readings are loud: it is learned
# too large. What is wrong about f, and what the filter does not know of the state, has to go somewhere.
#
# What the band means
# -------------------
# The band says where f itself may be, not where the next state will be: the noise of the states is not in it, nor that
# of a reading. Two things are to be known of it.
#
# Where states have been, the last column should be 0.95. At low noise it is near that, at high noise it is far
# below: the posterior is too sure of itself. The hundred points are no hundred independent trials, though. f is smooth,
# and a bend that is wrong is wrong over its whole length, so that the share differs much from seed to seed.
#
# Where no state has been, the band opens, and the curve goes back to its mean function, a line by default. That is a
# guess of the prior and no knowledge: on the right the truth leaves the band soon after the last of the states. What
# is at stake in a forecast should be checked on data. ``fit(..., holdout=0.2)`` does, and corrects the bands of
# forecasts by what it finds.
#
# The whole table
# ---------------
# ``gpssm reproduce kink`` is the paper's Table I: all noises, many methods, five seeds, the printed numbers beside
# ours, and the variance of the readings given, as there; ``--method EnVI --obs-noise 0.08`` is one row of it.
# What was corrected in the text of the paper is on :doc:`/paper`; what other methods make of the kink on
# :doc:`/methods`.
