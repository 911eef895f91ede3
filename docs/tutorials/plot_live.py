"""
Learning live, from nothing or from an archive
==============================================

Samples arrive one by one, and nobody wants to wait for the last of them. :class:`gpssm.OEnVI` predicts every sample,
looks at it, and learns from it, in constant time and memory. Here it meets an oscillator that it knows nothing of; then
one that starts from what :class:`gpssm.EnVI` has learned from an archive.
"""

# %%
# The sensor
# ----------
# Two voltages of a relaxation oscillator (van der Pol's), read ten times a second with a noise of 0.1 V: slow
# ramps, sudden jumps.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import gpssm
from gpssm.plots import BLUE, GREY, ORANGE

RATE, NOISE = 10, 0.1  # samples a second; V


def oscillator(length, seed):
    """Two voltages (length, 2) as they are, and as the sensor reads them."""
    rng, x, states = np.random.default_rng(seed), np.array([0.5, 0.0]), []
    for _ in range(length):
        for _ in range(10):  # small steps in between
            x = x + 0.01 * np.array([x[1], 2.0 * (1 - x[0] ** 2) * x[1] - x[0]])
        x = x + [0.0, 0.01] * rng.normal(size=2)  # nothing is perfect
        states.append(x)
    return np.array(states), np.array(states) + NOISE * rng.normal(size=(length, 2))


states, readings = oscillator(1000, seed=0)

# %%
# One sample at a time
# --------------------
# ``learn_one`` returns the filtered state and the prediction that was made *before* the sample was seen. After 40, 100
# and 400 samples we ask what comes next. The stream is not disturbed by being asked.

stream = gpssm.OEnVI(state_dim=2, num_inducing=30).start(seed=0)
estimates, forecasts = [], {}
for t, reading in enumerate(readings, start=1):
    estimates.append(stream.learn_one(reading))
    if t in (40, 100, 400):
        forecasts[t] = stream.forecast(horizon=60)  # six seconds

fig, axes = plt.subplots(3, 1, figsize=(8, 6), layout="constrained", sharey=True)
for ax, (t, ahead) in zip(axes, forecasts.items(), strict=True):
    shown, to_come = np.arange(max(0, t - 40), t + 60), np.arange(t, t + 60)
    low, high = ahead.band(0.9)
    ax.plot(shown / RATE, states[shown, 0], color=GREY, lw=1, label="the voltage itself")
    ax.plot(shown[shown < t] / RATE, readings[shown[shown < t], 0], ".", color=ORANGE, ms=4, label="readings so far")
    ax.fill_between(to_come / RATE, low[:, 0], high[:, 0], color=BLUE, alpha=0.22, lw=0, label="90% band")
    ax.plot(to_come / RATE, ahead.mean[:, 0], color=BLUE, lw=2, label="forecast")
    ax.set(title=f"after {t} samples", ylabel="voltage [V]", ylim=(-4, 4), xlim=(shown[0] / RATE, to_come[-1] / RATE))
axes[0].legend(frameon=False, fontsize=8, ncols=4, loc="upper left")
axes[-1].set_xlabel("time [s]")
plt.show()

# %%
# After four seconds it has seen one jump, and does not know that there are others. After ten it knows both, but not
# when the next one will come; after forty the ramp is certain for a second or two, and the band says when doubt
# begins. How good its one-step predictions became, and whether their bands held:

errors = np.array([e.predicted_mean for e in estimates]) - readings
widths = np.array([e.predicted_std for e in estimates])
filtered = np.array([e.state_mean for e in estimates]) - states
print("samples       predicted, RMSE   in 90% band   filtered, RMSE")
for first, last in ((20, 100), (100, 300), (300, 1000)):
    part = slice(first, last)
    rmse, state = (np.sqrt(np.mean(each[part] ** 2)) for each in (errors, filtered))
    inside = np.mean(np.abs(errors[part]) < 1.645 * widths[part])
    print(f"{first:4} to {last:<5} {rmse:15.3f} V {inside:12.2f} {state:15.3f} V")
print(f"the sensor alone: {NOISE:.3f} V")

# %%
# A prediction cannot be better than the noise of what it predicts, 0.1 V. The *filtered* state can: it knows the
# dynamics, and the sensor does not.
#
# Many at once
# ------------
# When samples come in bunches, ``learn_many`` learns the same from them as ``learn_one``, to the last digit, and
# faster.

again = gpssm.OEnVI(state_dim=2, num_inducing=30).start(seed=0)
all_at_once = again.learn_many(readings)
print("the same:", np.array_equal(all_at_once.state_mean, [e.state_mean for e in estimates]))

# %%
# Start from an archive
# ---------------------
# If there is a recording already, learn it with EnVI, as often as it takes, and go live from there. What is compared
# is a second run of the oscillator: a stream that starts from nothing, and one that goes on from the archive.

archive = readings[:300]
fitted = gpssm.EnVI(state_dim=2, num_inducing=30, schedule=gpssm.Schedule(max_steps=400)).fit(archive, seed=0)
informed = gpssm.OEnVI.continuing(fitted)
fresh = gpssm.OEnVI(state_dim=2, num_inducing=30).start(seed=0)
_, new = oscillator(200, seed=1)

runs = {"from nothing": fresh.learn_many(new), "from an archive": informed.learn_many(new)}
fig, ax = plt.subplots(figsize=(8, 2.8), layout="constrained")
for (name, run), colour in zip(runs.items(), (ORANGE, BLUE), strict=True):
    squared = np.mean((run.predicted_mean - new)[10:] ** 2, axis=1)  # the first ten only tell a stream the units
    window = np.convolve(squared, np.ones(10) / 10, mode="valid")
    ax.plot(np.arange(20, 201) / RATE, np.sqrt(window), color=colour, lw=2, label=name)
ax.axhline(NOISE, color=GREY, lw=1, ls="--", label="noise of the sensor")
ax.set(xlabel="time since the start [s]", ylabel="error of the next sample [V]", ylim=(0, None), xlim=(0, 20))
ax.set_title("One-step predictions, RMSE of the last second")
ax.legend(frameon=False, fontsize=8)
plt.show()

# %%
# What the archive knows a stream would need its first minutes to find out. (The schedule of its fit is short to keep
# this page quick; leave it out of your own.)
#
# Save, and go on
# ---------------
# A stream is one file. What goes on from it is, bit for bit, what would have gone on without it.

with tempfile.TemporaryDirectory() as folder:
    informed.save(Path(folder) / "live.gpssm")
    loaded = gpssm.load(Path(folder) / "live.gpssm")
print(loaded)
print("goes on as it did:", np.array_equal(loaded.learn_one(new[0]).state_mean, informed.learn_one(new[0]).state_mean))

# %%
# In the shell all of this is ``sensor | gpssm stream --outputs y --checkpoint live.gpssm --forecast 10``, and from
# Redis every message is learned from exactly once: :doc:`/howto/redis`. Many sensors of one kind side by side are a
# :class:`gpssm.Fleet`: :doc:`/howto/several_recordings`.
