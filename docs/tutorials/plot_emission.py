"""
A nonlinear sensor
==================

By default a sensor reads a state, or a line through several: g is linear. Real sensors bend, clip and square. Where you
know how, hand the function over: ``emission=`` takes any g that is made of JAX operations. Here two sensors look at one
tank. One is precise and ends at 1.2 m; the other sees everything, badly.
"""

# %%
# The tank
# --------
# A pump fills a tank, and an outlet drains it, the faster the higher the level. Nothing of that will be told to the
# model. Once a minute two sensors are read: a probe with a noise of 1 cm that ends at 1.2 m, and a pressure gauge with
# a noise of 10 cm.

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import gpssm
from gpssm.plots import BLUE, GREEN, GREY, ORANGE

END, NOISE = 1.2, np.array([0.01, 0.1])  # m


def sensors(level):
    """g: what probe and gauge read (n, 2) at levels (n, 1), without noise."""
    probe = END - 0.03 * jax.nn.softplus((END - level) / 0.03)  # min(level, END) with a rounded corner
    return jnp.concatenate([probe, level], axis=1)


def tank(length, seed):
    """Levels (length, 1) in m, inflows (length, 1) in litres a minute, and readings (length, 2) in m."""
    rng, level, levels = np.random.default_rng(seed), 0.8, []
    inflow = np.repeat(rng.choice([10.0, 20.0, 30.0, 40.0], length // 12 + 1), 12)[:length]
    for u in inflow:
        for _ in range(5):  # small steps in between; the tank has 0.3 square metres
            level = max(level + 0.2 * (u / 1000 - 0.024 * np.sqrt(level)) / 0.3, 0.01)
        level = max(level + 0.01 * rng.normal(), 0.01)  # nothing is perfect
        levels.append(level)
    levels = np.array(levels)[:, None]
    return levels, inflow[:, None], np.asarray(sensors(levels)) + NOISE * rng.normal(size=(length, 2))


levels, inflow, readings = tank(700, seed=0)
learned, later = slice(0, 400), slice(400, 700)

fig, (over_time, of_level) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained", width_ratios=(2, 1))
for j, name, colour in ((1, "gauge", GREY), (0, "probe", ORANGE)):
    over_time.plot(readings[:150, j], ".", color=colour, ms=4, label=name)
    of_level.plot(levels[learned, 0], readings[learned, j], ".", color=colour, ms=3)
over_time.plot(levels[:150], color="black", lw=1, label="level")
over_time.set(xlabel="time [min]", ylabel="reading [m]")
over_time.legend(frameon=False, fontsize=8, ncols=3, loc="upper right")
over_time.set_ylim(None, 1.25 * readings[:150].max())
with_one = np.hstack([levels[learned], np.ones((400, 1))])
line = np.linalg.lstsq(with_one, readings[learned], rcond=None)[0]
of_level.plot(levels[learned], with_one @ line[:, 0], color=BLUE, lw=1.5, label="best line for the probe")
of_level.set(xlabel="level [m]")
of_level.legend(frameon=False, fontsize=8, loc="upper left")
plt.show()

misfit = np.sqrt(np.mean((readings[learned] - with_one @ line) ** 2, axis=0))
print(f"the best line misses the probe by {misfit[0]:.2f} m and the gauge by {misfit[1]:.2f} m")

# %%
# The level is one state, and there are two outputs. ``EnVI(1)`` would learn a line for each of them
# (``emission="learned"``, the default where there are fewer states than outputs). There is none for the probe: the best
# one, which would have to know the level, misses it by many times its noise. The model would take the rest for noise,
# and its state for something between the two sensors.
#
# The linear way that does work is a state for each reading, ``EnVI(2)``: the first states are the outputs.
#
# Hand over g
# -----------
# The other way is one state, and the function from above. It gets states (n, 1) and returns outputs (n, 2), in your
# units, and is made of ``jax.numpy``. Behind a function of yours nobody can see where the states live, so
# ``initial_state`` says so: around 1 m, give or take half a metre (mean and *variance*). It is the prior of the first
# state and the unit that f is learned in. (The schedules are short to keep this page quick.)

short = gpssm.Schedule(max_steps=400)
linear = gpssm.EnVI(2, 15, schedule=short).fit(readings[learned], inflow[learned], seed=0)
method = gpssm.EnVI(1, 15, emission=sensors, initial_state=(1.0, 0.5**2), schedule=short)
fitted = method.fit(readings[learned], inflow[learned], seed=0)
print(fitted.summary())

# %%
# Variances are in squares of your units; their roots are standard deviations. Those of the sensors were found, about
# 1 cm and 10 cm, and so was that of the tank, about 1 cm in a minute.
#
# The level
# ---------
# How high the water stands, minute by minute, from the readings up to that minute. Both models have learned from the
# first 400 minutes; what is shown and scored are the 300 after them. ``EnVI(2)`` has two answers, and somebody has to
# know when to believe which: here the state of the probe up to 1.15 m, and that of the gauge above it.


def level_of(model, readings):
    """Mean and standard deviation of the level in the later minutes, given the readings until then."""
    states = model.filter(readings, inflow[later], state=model.end)
    if model.state_dim == 1:
        return states.mean[:, 0], states.std[:, 0]
    below = states.mean[:, 0] < 1.15
    return np.where(below, *states.mean.T), np.where(below, *states.std.T)


truth = levels[later, 0]
high = truth > END


def report(name, mean, std):
    """Print how far off the level is, below and above the end of the probe."""
    low_error, high_error = (np.sqrt(np.mean((mean - truth)[rows] ** 2)) for rows in (~high, high))
    inside = np.mean(np.abs(mean - truth) < 1.645 * std)
    print(f"{name:22} {low_error:14.3f} m {high_error:14.3f} m {inside:14.2f}")


print(f"{'RMSE of the level':22} {'below 1.2 m':>16} {'above 1.2 m':>16} {'in 90% band':>14}")
by_linear, by_g = level_of(linear, readings[later]), level_of(fitted, readings[later])
report("a state for each", *by_linear)
report("g", *by_g)
sensor_alone = np.where(high, readings[later, 1], readings[later, 0])
report("the better sensor", sensor_alone, np.where(high, *NOISE[::-1]))

# %%
# Below the end of the probe there is little to gain. Above it only the gauge is left, and whoever knows the dynamics
# averages its 10 cm over time. Both models do. The one with g does it better, and its band holds: there is one level,
# with one f, and it passes the end of the probe known to a centimetre. ``EnVI(2)`` does not know that its two states
# are the same water. (With two other seeds of the tank, g has 0.8 and 0.3 times its error above 1.2 m.)
#
# Take the gauge away
# -------------------
# Now the gauge fails: its readings become NaN. The probe still says *that* the level is above 1.2 m, and no longer how
# far. What remains are f and the inflow. No model is learned again.

probe_alone = readings[later].copy()
probe_alone[:, 1] = np.nan
print(f"{'RMSE, gauge missing':22} {'below 1.2 m':>16} {'above 1.2 m':>16} {'in 90% band':>14}")
blind = {"a state for each": level_of(linear, probe_alone), "g": level_of(fitted, probe_alone)}
for name, estimate in blind.items():
    report(name, *estimate)

minutes = np.arange(400, 700)
fig, axes = plt.subplots(2, 1, figsize=(8, 5), layout="constrained", sharex=True, sharey=True)
for ax, (name, (mean, std)), colour in zip(axes, blind.items(), (GREEN, BLUE), strict=True):
    ax.fill_between(minutes, mean - 1.645 * std, mean + 1.645 * std, color=colour, alpha=0.22, lw=0, label="90% band")
    ax.plot(minutes, mean, color=colour, lw=1.5, label="estimate")
    ax.plot(minutes, truth, color="black", lw=1, label="level")
    ax.plot(minutes, probe_alone[:, 0], ".", color=ORANGE, ms=3, label="probe")
    ax.set(title=name, ylabel="level [m]", xlim=(400, 700))
axes[0].legend(frameon=False, fontsize=8, ncols=4)
axes[1].set_xlabel("time [min]")
plt.show()

# %%
# With g the level is followed through the blind hours by its dynamics, and the doubt grows until the probe sees the
# level again. With a state for each reading the estimate drifts off, and its band does not say so. How far depends on
# the recording: of two other seeds of the tank it is further off with one, and as good as with g with the other.
#
# Forecasts
# ---------
# With the sensors whole again, 25 minutes ahead, again and again, with the inflow known:

print("25 minutes ahead     probe, RMSE  in 90% band   gauge, RMSE  in 90% band")
for name, model in {"a state for each": linear, "g": fitted}.items():
    paths = gpssm.evaluation.blocks(model, readings[later], inflow[later], length=25, state=model.end)
    probe, gauge = (gpssm.evaluation.score(paths[:, :, [j]], readings[later][:, [j]]) for j in (0, 1))
    print(f"{name:18} {probe.rmse:11.3f} m {probe.coverage90:12.2f} {gauge.rmse:11.3f} m {gauge.coverage90:12.2f}")

# %%
# Forecasts gain less: here the two are as good as each other. A reading is as noisy as its sensor, and two readings
# have dynamics that can be learned nearly as well as those of one level. If all you want are readings, the linear
# default may do; if you want the level, it does not. Where g only bends and does not end, even less is lost: the
# reading itself is then a state, of the same system in bent coordinates, and f is a GP that does not mind.
#
# To keep in mind
# ---------------
# - g is yours, and is not learned; what is learned is a *linear* g: ``emission="learned"``, or from a start of your
#   own, :class:`gpssm.LinearEmission`. A known matrix C is handed over as it is.
# - Where a stretch of g is flat, some other sensor has to see what happens there *while f is learned*. With the probe
#   alone from the start, nothing tells 1.3 m from 3 m, and the fit does not succeed.
# - If a number in g is not known, fit with several, and compare ``log_likelihood`` on later samples.
# - g is code, and is not in the file of a model. Hand it over again when it is loaded:

with tempfile.TemporaryDirectory() as folder:
    fitted.save(Path(folder) / "tank.gpssm")
    loaded = gpssm.load(Path(folder) / "tank.gpssm", functions={"emission": sensors})
print("the same:", np.array_equal(loaded.end.mean, fitted.end.mean))

# %%
# Live it is the same argument: ``gpssm.OEnVI(1, emission=sensors)``, or ``gpssm.OEnVI.continuing(fitted)``.
