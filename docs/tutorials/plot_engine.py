"""
An engine test bench: inputs, hidden states, a free run
=======================================================

An engine stands on a test bench. Somebody moves the throttle and the brake, and a sensor reads the speed. What will the
speed do if they are moved in another way? :class:`gpssm.EnVI` learns it from one recording, without equations; then it
has to run freely, from inputs alone, beside :class:`gpssm.ARX`, the line that every engineer tries first.
"""

# %%
# The bench
# ---------
# A simulation in a few lines, so that the truth is known. Air flows through the throttle into the intake manifold; the
# flow depends on the pressure there, and is choked below half an atmosphere. The engine pumps the air out, the faster
# the faster it turns. Torque grows with the pressure; friction grows with the square of the speed. The bench records
# the two *inputs*, throttle and load, and one *output*, the speed, with a noise of 15 rpm. The pressure is *hidden*:
# it has a dynamics of its own, and nobody measures it.

import matplotlib.pyplot as plt
import numpy as np

import gpssm
from gpssm.plots import BLUE, GREEN, GREY, ORANGE
from gpssm.posteriors.check import Check, Score

RATE, NOISE = 10, 15.0  # samples a second; rpm


def engine(inputs, speed=1500.0, pressure=40.0, seed=None):
    """Speed [rpm] and pressure [kPa] (T, 2), for throttle [%] and load [Nm] (T, 2); without a seed undisturbed."""
    rng, states = np.random.default_rng(seed), []
    for throttle, load in inputs:
        disturbance = 0.0 if seed is None else rng.normal()  # of the torque, Nm: no combustion is like the last one
        area = 1 - np.cos(np.deg2rad(8 + 0.82 * throttle)) / np.cos(np.deg2rad(8))
        for _ in range(20):  # small steps in between
            ratio = pressure / 100
            flow = 4400 * area * (1.0 if ratio < 0.5 else 2 * np.sqrt(max(ratio * (1 - ratio), 0.0)))
            torque = 1.6 * (pressure - 15) - 15 - 3 * (speed / 1000) ** 2 - load + disturbance
            pressure = pressure + (flow - 0.0025 * speed * pressure) / 200
            speed = speed + torque / 0.6 * 9.55 / 200  # inertia 0.6 kg m^2; 9.55 rpm are 1 rad/s
        states.append((speed, pressure))
    return np.array(states)


def steps(rng, length, low, high):
    """A new level every one to five seconds."""
    levels = []
    while len(levels) < length:
        levels += [rng.uniform(low, high)] * int(rng.integers(10, 50))
    return levels[:length]


rng = np.random.default_rng(0)
inputs = np.column_stack([steps(rng, 800, 10, 40), steps(rng, 800, 0, 50)])
speed, pressure = engine(inputs, seed=0).T
readings = speed[:, None] + NOISE * rng.normal(size=(800, 1))
learned, held = slice(600), slice(600, 800)

time = np.arange(800) / RATE
fig, axes = plt.subplots(4, 1, figsize=(8, 6), layout="constrained", sharex=True)
for ax, values, colour, name in (
    (axes[0], inputs[:, 0], GREEN, "throttle [%]"),
    (axes[1], inputs[:, 1], GREEN, "load [Nm]"),
    (axes[2], readings[:, 0], ORANGE, "speed [rpm]"),
    (axes[3], pressure, GREY, "hidden:\npressure [kPa]"),
):
    ax.plot(time, values, color=colour, lw=1)
    ax.set_ylabel(name)
    ax.axvspan(60, 80, color=GREY, alpha=0.12, lw=0)
axes[0].set_title("One minute to learn from, 20 seconds held back (shaded)")
axes[3].set(xlabel="time [s]", xlim=(0, 80))
fig.align_ylabels()
plt.show()

# %%
# Throttle and load move by themselves, often, and over the whole range that we are going to ask for. That matters more
# than any setting below: where a recording has never been, nothing can be learned.
#
# Learn
# -----
# Two states: one is the speed, for there is one output; the other is free to become whatever the recording needs. How
# many to take is a page of its own: :doc:`/howto/state_dimension`. Row t of the inputs acts on the way to row t of the
# outputs. (``num_inducing=10``, ``restarts=1`` and the short schedule keep this page quick; leave them out of yours.)

method = gpssm.EnVI(state_dim=2, num_inducing=10, schedule=gpssm.Schedule(max_steps=400))
fitted = method.fit(readings[learned], inputs[learned], seed=0, restarts=1)
line = gpssm.ARX().fit(readings[learned], inputs[learned])
print(fitted)
print(line)

# %%
# Run freely
# ----------
# Both models forecast the 20 seconds that were held back in one go. They are told what throttle and load will be, and
# nothing of the speed. Error is relative to the true speed; the band is for what the sensor reads.

forecasts = {"EnVI": fitted.forecast(200, inputs[held]), "ARX": line.forecast(200, inputs[held])}
print("        error [rpm]   readings in 90% band   mean width of band [rpm]")
for name, ahead in forecasts.items():
    low, high = ahead.band(0.9)
    error = gpssm.metrics.rmse(ahead.mean[:, 0], speed[held])
    share = gpssm.metrics.coverage(ahead.samples, readings[held], 0.9)
    print(f"{name:6} {error:12.0f} {share:22.2f} {np.mean(high - low):26.0f}")

fig, axes = plt.subplots(2, 1, figsize=(8, 5), layout="constrained", sharex=True, sharey=True)
for ax, (name, ahead) in zip(axes, forecasts.items(), strict=True):
    low, high = ahead.band(0.9)
    ax.fill_between(time[held], low[:, 0], high[:, 0], color=BLUE, alpha=0.22, lw=0, label="90% band")
    ax.plot(time[held], ahead.mean[:, 0], color=BLUE, lw=2, label="forecast")
    ax.plot(time[held], readings[held, 0], ".", color=ORANGE, ms=3, label="readings, not seen")
    ax.set(title=f"{name}: 20 seconds from inputs alone", ylabel="speed [rpm]")
axes[0].legend(frameon=False, fontsize=8, ncols=3)
axes[1].set(xlabel="time [s]", xlim=(60, 80))
plt.show()

# %%
# After twenty seconds without a reading EnVI is about as far off as a single reading would be, or less. The error of
# the line is many times as large. Its band is wide, and still holds less than it promises: what bends is noise to a
# line, and noise averages out, which these errors do not. (Other minutes on the same bench, with other seeds: 10 to 35
# rpm for EnVI, 70 to 150 for ARX; EnVI's band holds from 70 to 90%. It is no law that it holds.)
#
# What if?
# --------
# This is what a model is for: to try on it what nobody wants to try on the engine. The same throttle step three times,
# from 10 to 20, to 30, to 40 percent, at a load of 25 Nm. That never happened in the recording. Since the bench is a
# simulation, the true engine can be asked, too.

plan = np.column_stack([np.repeat([10.0, 20.0, 30.0, 40.0], 50), np.full(200, 25.0)])
truth = engine(plan, speed[599], pressure[599])[:, 0]
what_if = {"EnVI": fitted.forecast(200, plan), "ARX": line.forecast(200, plan)}

fig, ax = plt.subplots(figsize=(8, 3.4), layout="constrained")
ahead_of_time = np.arange(1, 201) / RATE
for (name, ahead), colour in zip(what_if.items(), (BLUE, ORANGE), strict=True):
    low, high = ahead.band(0.9)
    ax.fill_between(ahead_of_time, low[:, 0], high[:, 0], color=colour, alpha=0.2, lw=0)
    ax.plot(ahead_of_time, ahead.mean[:, 0], color=colour, lw=2, label=f"{name}, with its 90% band")
ax.plot(ahead_of_time, truth, color="black", lw=1, ls="--", label="the engine itself")
for level, at in zip((10, 20, 30, 40), (0, 5, 10, 15), strict=True):
    ax.axvline(at, color=GREY, lw=0.8, ls=":")
    ax.text(at + 0.15, 0.03, f"throttle {level}%", transform=ax.get_xaxis_transform(), fontsize=8, color=GREY)
ax.set(xlabel="time ahead [s]", ylabel="speed [rpm]", xlim=(0, 20), title="The same throttle step, three times")
ax.legend(frameon=False, fontsize=8, loc="upper left")
plt.show()

print("what a step of 10% throttle adds in the end [rpm]")
print("             10 to 20   20 to 30   30 to 40")
curves = {"engine": truth} | {name: ahead.mean[:, 0] for name, ahead in what_if.items()}
for name, values in curves.items():
    print(f"{name:10}", *(f"{rise:10.0f}" for rise in np.diff(values[49::50])))

# %%
# The wider the throttle is open, the less another ten percent do, for the manifold is nearly full. EnVI has learned
# that. To a line every step is worth about as much as any other (the first starts before the speed has settled); its
# gain is right somewhere in the middle.
#
# The hidden state
# ----------------
# The second state was free. Has it become the pressure? It has no unit, and its sign and size mean nothing: f can
# undo any of them. So we look for the straight line that brings it closest to kilopascals.

hidden = fitted.filter(readings[learned], inputs[learned]).mean[:, 1]
slope, offset = np.polyfit(hidden, pressure[learned], 1)
correlation = np.corrcoef(hidden, pressure[learned])[0, 1]
print(f"correlation of the second state with the pressure: {abs(correlation):.2f}")

fig, ax = plt.subplots(figsize=(8, 2.8), layout="constrained")
ax.plot(time[learned], pressure[learned], color="black", lw=1, ls="--", label="manifold pressure, never measured")
ax.plot(time[learned], offset + slope * hidden, color=BLUE, lw=1.5, label="second state, scaled")
ax.set(xlabel="time [s]", ylabel="pressure [kPa]", xlim=(0, 60), ylim=(None, 130))
ax.legend(frameon=False, fontsize=8, ncols=2, loc="upper left")
plt.show()

# %%
# It has become something much like it. It need not be: any mixture of pressure, speed and what acts on them would do as
# well for forecasts. A hidden state is what the future depends on; that it can be read is luck.
#
# What was learned
# ----------------

print(fitted.summary())

# %%
# Everything is in your units. What is worth a look:
#
# - ``obs_noise.variance``: its root is the noise of the sensor, here roughly the 15 rpm that it has.
# - ``process_noise.variance``: its root is what happens to each state in one step that no input explains; the first is
#   in rpm. It is small beside the noise of the sensor: that is why a free run can be better than a reading.
# - ``lengthscale``: one row for each state that f predicts, one number for speed, second state, throttle and load. Over
#   that distance f bends. A number far above the range of its column says that f is straight in it: in the first row
#   that is the load, and physics has it so, too.
# - ``emission``: fixed. The first state *is* the speed.
# - The last line: whoever wants to know whether to trust the model has to ask for a check.
#
# The check
# ---------
# What we did by hand, ``fit(..., holdout=0.2)`` does by itself, and so does the command
#
# .. code-block:: console
#
#    $ gpssm fit bench.csv --outputs "speed [rpm]" --inputs "throttle [%],load [Nm]" --out engine.gpssm
#
# Both learn twice, first without the last fifth; forecast that; put the result beside lines and the mean; correct the
# bands by what they have found; and say in words what the numbers mean. This page has learned once, so it hands its two
# forecasts to the same :class:`Check <gpssm.posteriors.check.Check>`:

scores = [Score.of(name, [(ahead.samples, readings[held])]) for name, ahead in forecasts.items()]
print(Check(200, tuple(scores), ("speed [rpm]",)))

# %%
# Its RMSE is larger than the error above: it is measured against readings, whose noise no forecast can know. What the
# columns mean is in :doc:`/start`; what to do when the verdict is a bad one, in :doc:`/howto/bad_result`.
