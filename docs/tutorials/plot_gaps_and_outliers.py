"""
A sensor with gaps and outliers
===============================

A level sensor falls silent for half an hour, and now and then it reads nonsense. Nobody wants to clean such a recording
by hand, and nobody has to: gaps are NaN, and a likelihood with heavy tails takes nonsense for what it is.
"""

# %%
# The recording
# -------------
# A tank, filled by a pump that is on or off, drained through a hole at the bottom; above 1.2 m a second outlet runs,
# too. Rain and evaporation disturb it. An ultrasonic sensor reads the level once a minute, with a noise of 2 cm. Three
# times it is silent for half an hour or more, and of its readings one in thirty is the echo of something else.

import warnings

import matplotlib.pyplot as plt
import numpy as np

import gpssm
from gpssm.errors import DataWarning
from gpssm.plots import BLUE, GREEN, GREY, ORANGE

NOISE = 0.02  # m


def tank(pump, rng):
    """The level [m] (T,) once a minute, for a pump that is on (1) or off (0)."""
    level, levels = 0.8, []
    for on in pump:
        overflow = 0.04 * np.sqrt(max(level - 1.2, 0.0))
        level += 0.055 * on - 0.03 * np.sqrt(max(level, 0.0)) - overflow + 0.004 * rng.normal()
        level = max(level, 0.0)
        levels.append(level)
    return np.array(levels)


rng = np.random.default_rng(0)
pump = np.repeat(np.arange(30) % 2, rng.integers(10, 40, size=30))[:500].astype(float)
level = tank(pump, rng)
readings = level + NOISE * rng.normal(size=500)
absurd = rng.random(500) < 1 / 30
readings[absurd] = rng.uniform(0.0, 4.0, size=absurd.sum())
gaps = [(90, 130), (240, 300), (400, 430)]
for first, last in gaps:
    readings[first:last] = np.nan
silent = np.isnan(readings)
absurd &= ~silent
minutes = np.arange(500)
print(f"{silent.sum()} of 500 readings are missing, {absurd.sum()} are absurd")

fig, ax = plt.subplots(figsize=(8, 2.8), layout="constrained")
ax.plot(minutes, level, color="black", lw=1, ls="--", label="the level itself")
ax.plot(minutes, readings, ".", color=ORANGE, ms=4, label="readings")
ax.fill_between(minutes, -0.45, -0.2, where=pump > 0, step="pre", color=GREEN, alpha=0.5, lw=0, label="pump on")
for first, last in gaps:
    ax.axvspan(first, last, color=GREY, alpha=0.15, lw=0, label="silent" if first == gaps[0][0] else None)
ax.set(xlabel="time [min]", ylabel="level [m]", xlim=(0, 500), ylim=(-0.5, 5.3))
ax.legend(frameon=False, fontsize=8, ncols=4, loc="upper left")
plt.show()

# %%
# Two likelihoods
# ---------------
# A missing reading is NaN, and that is all there is to do about it. What to do about absurd ones is a question of the
# noise. The default is Gaussian: a reading ten standard deviations off never happens. ``likelihood="student_t"`` learns
# besides the width of the noise how heavy its tails are. (One state, since nothing is hidden. Few inducing points, an
# update that compiles sooner and a short schedule keep this page quick; leave them out of your own.)

short = {"num_inducing": 10, "update": "sqrt", "schedule": gpssm.Schedule(max_steps=150)}
fits = {
    "Gaussian": gpssm.EnVI(state_dim=1, **short).fit(readings, pump, seed=0),
    "Student t": gpssm.EnVI(state_dim=1, likelihood="student_t", **short).fit(readings, pump, seed=0),
}
print("             width of the noise [cm]   degrees of freedom   disturbance of the level [cm/min]")
for name, fitted in fits.items():
    values = {row.name: row.value for row in fitted.summary().rows}
    width, disturbance = (100 * values[key].item() ** 0.5 for key in ("obs_noise.variance", "process_noise.variance"))
    freedom = values.get("obs_noise.degrees_of_freedom", np.array(np.inf)).item()
    print(f"{name:10} {width:25.1f} {freedom:20.1f} {disturbance:35.1f}")
print(f"{'the truth':10} {100 * NOISE:25.1f} {'':20} {0.4:35.1f}")

# %%
# The Gaussian model has to put the absurd readings somewhere. Here it takes the sensor to be some ten times as noisy as
# it is, and the level to jump around by itself; in other recordings it does only one of the two, or bends f. Student's
# t says that the noise is narrow and its tails are as heavy as they come (2 is the limit, below which there is no
# variance; its width is that of its core, without the tails).
#
# What they make of it
# --------------------
# ``filter`` gives the level at every minute from the readings so far; ``smooth`` from all readings, also those to come.

filtered = {name: fitted.filter(readings, pump) for name, fitted in fits.items()}
smoothed = fits["Student t"].smooth(readings, pump)

fig, axes = plt.subplots(2, 1, figsize=(8, 5), layout="constrained", sharex=True, sharey=True)
for ax, (name, states) in zip(axes, filtered.items(), strict=True):
    mean, reach = states.mean[:, 0], 1.645 * states.std[:, 0]
    ax.fill_between(minutes, mean - reach, mean + reach, color=BLUE, alpha=0.25, lw=0, label="90% band")
    ax.plot(minutes, mean, color=BLUE, lw=1.5, label="filtered level")
    ax.plot(minutes, level, color="black", lw=1, ls="--", label="the level itself")
    ax.plot(minutes, readings, ".", color=ORANGE, ms=4, label="readings")
    ax.set(title=f"filtered, {name}", ylabel="level [m]", xlim=(0, 500), ylim=(-0.2, 4.9))
axes[0].legend(frameon=False, fontsize=8, ncols=4, loc="upper left")
axes[1].set_xlabel("time [min]")
plt.show()

estimates = {f"filtered, {name}": states for name, states in filtered.items()} | {"smoothed, Student t": smoothed}
parts = {"in gaps": silent, "at absurd readings": absurd, "elsewhere": ~(silent | absurd)}
print("RMSE [cm], share in band", *(f"{part:>18}" for part in parts))
for name, states in estimates.items():
    error, reach = states.mean[:, 0] - level, 1.645 * states.std[:, 0]
    cells = ((100 * np.sqrt(np.mean(error[p] ** 2)), np.mean(np.abs(error[p]) < reach[p])) for p in parts.values())
    print(f"{name:24}", *(f"{rmse:12.1f}, {share:.2f}" for rmse, share in cells))
print(f"{'the sensor':24} {'-':>18} {'':>18} {100 * NOISE:12.1f}")

# %%
# The Gaussian model follows an absurd reading most of the way, and knows little of where the level goes in a gap: its
# band is honest there, and useless. With Student's t an absurd reading leaves no trace, gaps are bridged to a few
# centimetres, and the filtered level is better than any reading.
#
# Inside a gap
# ------------
# The hour without a reading, from closer by. The pump is known, and f is, so the estimate goes on. What disturbs the
# level adds up meanwhile, and the band says how much. The smoother has also seen how the gap ends.

first, last = gaps[1]
near = slice(first - 15, last + 15)
fig, ax = plt.subplots(figsize=(8, 3.4), layout="constrained")
for states, colour, name in ((filtered["Student t"], BLUE, "filtered"), (smoothed, GREEN, "smoothed")):
    mean, reach = states.mean[near, 0], 1.645 * states.std[near, 0]
    ax.fill_between(minutes[near], mean - reach, mean + reach, color=colour, alpha=0.22, lw=0)
    ax.plot(minutes[near], mean, color=colour, lw=1.5, label=f"{name}, with its 90% band")
ax.plot(minutes[near], level[near], color="black", lw=1, ls="--", label="the level itself")
ax.plot(minutes[near], readings[near], ".", color=ORANGE, ms=5, label="readings")
ax.set(xlabel="time [min]", ylabel="level [m]", xlim=(first - 15, last + 15), ylim=(0.35, 1.85))
ax.legend(frameon=False, fontsize=8, ncols=2, loc="upper left")
plt.show()

print("half width of the 90% band [cm]")
print("minutes of silence   filtered   smoothed")
for after in (1, 5, 15, 30, 45, 60):
    widths = (164.5 * states.std[first + after - 1, 0] for states in (filtered["Student t"], smoothed))
    print(f"{after:18}", *(f"{width:10.1f}" for width in widths))

# %%
# The filter's doubt grows with the silence, but not without limit: a tank forgets where it was, since a fuller one
# drains faster. The smoother doubts most in the middle.
#
# What is said, and what is not
# -----------------------------
# Neither fit has complained. These readings are absurd for this tank, but not impossible, and no rule of thumb can tell
# them from a system that jumps. What *cannot* be meant is a :class:`gpssm.errors.DataWarning`: an error code among
# metres, centimetres for a model that knows metres. Nothing is removed behind your back.

coded = readings.copy()
coded[[100, 250]] = -9999.0
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    gpssm.ARX().fit(coded, pump)
    fits["Student t"].filter(100 * readings, pump)
for warning in said:
    if issubclass(warning.category, DataWarning):
        print(warning.message)

# %%
# In a file error codes are named once: ``gpssm fit ... --na=-9999``, or see :doc:`/howto/your_file`.
#
# Live
# ----
# A stream cannot look ahead, and has no likelihood to choose. :class:`gpssm.OEnVI` judges every sample by its own
# prediction: what is four standard deviations off is trusted less, the less the farther off it is. The same recording,
# from nothing:

stream = gpssm.OEnVI(state_dim=1, num_inducing=10).start(seed=0)
live = stream.learn_many(readings, pump)
print("minute   predicted [m]   reading [m]   filtered [m]   truth [m]")
for t in np.flatnonzero(absurd)[-6:]:
    predicted = f"{live.predicted_mean[t, 0]:.2f} +- {live.predicted_std[t, 0]:.2f}"
    print(f"{t:6} {predicted:>15} {readings[t]:13.2f} {live.state_mean[t, 0]:14.2f} {level[t]:11.2f}")

# %%
# Far off, and hardly believed. An absurd reading that happens to lie close to the prediction does move the state:
# nobody could know. And if the level really jumps, because somebody has emptied a lorry into the tank? The first
# readings are doubted like any other. When they go on saying the same, it is the state that has changed:

now = live.state_mean[-1, 0]
for k in range(5):
    estimate = stream.learn_one([now + 1.0], [0.0])
    print(f"reading {k + 1}: {now + 1:.2f} m   filtered {estimate.state_mean[0]:.2f} m")

# %%
# A number that no arithmetic should see is refused, and the sentence says so; the stream goes on as if it were missing.

print(stream.learn_one([1e9], [0.0]).refused)
print("refused so far:", stream.refused)

# %%
# More on streams: :doc:`/gallery/plot_live`. What else can spoil a fit: :doc:`/howto/bad_result`.
