"""
Physics you know: a pendulum in the mean function
=================================================

Nobody has to learn gravity from data. What is hard to write down is the rest: a bearing that sticks, air that brakes.
The mean function of f is the place for what you know; the Gaussian process then learns what is missing. Here it is the
friction of a pendulum, from four seconds of a recording, and the question is how much the equation was worth.
"""

# %%
# The pendulum
# ------------
# A weight on a rod of one metre, angle and speed read twenty times a second, both with noise. The truth has a friction
# that is dry (the same at all speeds) and turbulent (with the square of the speed). That is what we do not know.

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import gpssm
from gpssm.plots import BLUE, GREY, ORANGE
from gpssm.posteriors.states import States

STEP, GRAVITY = 0.05, 9.81  # s; 1/s^2, of a rod of one metre
NOISE = np.array([0.01, 0.05])  # of the readings: rad, rad/s


def friction(speed):
    """What brakes the weight, in rad/s^2."""
    return 0.5 * np.tanh(speed / 0.3) + 0.1 * speed * np.abs(speed)


def true_step(state, parts=20):
    """The state (..., 2) a step later, as it really is: many small steps in between."""
    angle, speed = np.moveaxis(np.asarray(state, float), -1, 0)
    for _ in range(parts):
        speed = speed - STEP / parts * (GRAVITY * np.sin(angle) + friction(speed))
        angle = angle + STEP / parts * speed
    return np.stack([angle, speed], axis=-1)


def release(angle, length, seed):
    """Let go at an angle: states (length, 2) and what was read of them."""
    rng, state, states = np.random.default_rng(seed), np.array([angle, 0.0]), []
    for _ in range(length):
        state = true_step(state) + [0.001, 0.005] * rng.normal(size=2)  # draughts
        states.append(state)
    return np.array(states), np.array(states) + NOISE * rng.normal(size=(length, 2))


states, readings = release(1.5, length=80, seed=0)

# %%
# What we know
# ------------
# A pendulum without friction, from one sample to the next: half a kick of gravity, a free flight, another half. A mean
# function takes rows of states (and inputs, if there are any) in the units of the data, and is made of JAX operations.


def frictionless(x):
    """Angle and speed (n, 2) a step later."""
    angle, speed = x[:, 0], x[:, 1]
    speed = speed - STEP / 2 * GRAVITY * jnp.sin(angle)
    angle = angle + STEP * speed
    speed = speed - STEP / 2 * GRAVITY * jnp.sin(angle)
    return jnp.stack([angle, speed], axis=1)


# %%
# Learn it twice
# --------------
# Once with the default mean, a line that is learned; once with the pendulum. Nothing else differs. Eighty samples are
# few, so the inducing inputs stay at the data where they start (:doc:`/howto/bad_result`). What is called ``quick``
# keeps this page quick: a short schedule, the simplest update, a small ensemble; leave it out of your own.

quick = {"schedule": gpssm.Schedule(max_steps=150), "update": "perturbed", "num_members": 20}
settings = {"state_dim": 2, "num_inducing": 20, "fixed": ("inducing_inputs",)} | quick
without = gpssm.EnVI(**settings).fit(readings, seed=0)
informed = gpssm.EnVI(**settings, mean=frictionless).fit(readings, seed=0)

# %%
# The friction that was found
# ---------------------------
# What the Gaussian process has added is f minus the mean, a change of speed in one step; divided by the step it is a
# deceleration. We ask for it at the lowest point, for all speeds.

speeds = np.linspace(-6, 6, 100)
at = np.stack([np.zeros_like(speeds), speeds], axis=1)
known, truth = np.asarray(frictionless(at))[:, 1], true_step(at)[:, 1]
mean, var = (part[:, 1] for part in informed.transition(at))
found, band, missing = (mean - known) / STEP, 1.96 * np.sqrt(var) / STEP, (truth - known) / STEP

fig, ax = plt.subplots(figsize=(8, 3.6), layout="constrained")
ax.axvspan(states[:, 1].min(), states[:, 1].max(), color=GREY, alpha=0.1, lw=0, label="speeds in the recording")
ax.fill_between(speeds, found - band, found + band, color=BLUE, alpha=0.22, lw=0, label="95% band")
ax.plot(speeds, found, color=BLUE, lw=2, label="learned: f minus the mean")
ax.plot(speeds, missing, color=ORANGE, lw=1.5, ls="--", label="true friction")
ax.set(xlabel="speed [rad/s]", ylabel="change of speed [rad/s$^2$]", xlim=(-6, 6))
ax.set_title("What gravity does not explain")
ax.legend(frameon=False, fontsize=8)
plt.show()

# %%
# At the speeds of the recording the curve is close to the friction, and the truth is in the band or at its edge: the
# jump of the dry friction near zero becomes a slope, as eighty noisy samples do not show it and the kernel is smooth.
# Beyond those speeds the Gaussian process has nothing to go by. Its curve flattens, on the way back to the mean without
# friction, and the band opens.
#
# Swing higher than ever before
# -----------------------------
# In the recording the weight was let go at 1.5 rad. Now it is held at 2.4 rad, well above the axis, and let go. What
# comes next? A forecast can start from any :class:`state <gpssm.posteriors.states.States>`; here it is known. Beside
# the two fits stands the equation alone, which swings for ever.

held = np.array([2.4, 0.0])
start = States(held[None], np.zeros((1, 2, 2)), 0.0, np.tile(held, (100, 1)))  # known for certain
future, read = release(held[0], length=100, seed=1)
ahead = {"without physics": without.forecast(100, state=start), "with physics": informed.forecast(100, state=start)}
ideal = [held]
for _ in range(100):
    ideal.append(np.asarray(frictionless(ideal[-1][None]))[0])
ideal = np.array(ideal[1:])

seconds = STEP * np.arange(1, 101)
fig, axes = plt.subplots(2, 1, figsize=(8, 5), layout="constrained", sharex=True, sharey=True)
for ax, (name, paths) in zip(axes, ahead.items(), strict=True):
    low, high = paths.band(0.9)
    ax.fill_between(seconds, low[:, 0], high[:, 0], color=BLUE, alpha=0.22, lw=0, label="90% band")
    ax.plot(seconds, paths.mean[:, 0], color=BLUE, lw=2, label="forecast")
    ax.plot(seconds, read[:, 0], ".", color=ORANGE, ms=4, label="readings")
    ax.axhspan(-1.5, 1.5, color=GREY, alpha=0.1, lw=0, label="angles in the recording")
    ax.set(title=name, ylabel="angle [rad]", xlim=(0, 5), ylim=(-3.7, 2.8))
axes[1].plot(seconds, ideal[:, 0], color=GREY, lw=1, ls="--", label="the equation alone")
axes[1].legend(frameon=False, fontsize=8, ncols=5, loc="lower left")
axes[1].set_xlabel("time since it was let go [s]")
plt.show()

print("                     angle, RMSE [rad]     in 90% band")
print("                   first second   all 5 s")
means = {"the equation alone": ideal} | {name: paths.mean for name, paths in ahead.items()}
for name, each in means.items():
    first, whole = (np.sqrt(np.mean((each[:count, 0] - future[:count, 0]) ** 2)) for count in (20, 100))
    share = f"{gpssm.metrics.coverage(ahead[name].samples, read, 0.9):.2f}" if name in ahead else "-"
    print(f"{name:18} {first:12.3f} {whole:9.3f} {share:>15}")

# %%
# A pendulum that swings high is slow, and nothing in the recording says so. Out there f is nearly the line that was
# learned, which has one frequency for all heights: without the equation the forecast is too fast from the first second
# on, and its band does not know better. With it, gravity is right wherever the weight is, and what was learned is only
# the friction, which is much the same up there. Neither half would do: the equation alone is out of step after two
# seconds. The share in the band counts angles and speeds; a share of one says that the band of the fit with physics is
# rather too wide than too narrow.
#
# When it helps, and when not
# ---------------------------
# - It helps where the recording is short, or where forecasts go beyond it. With many samples from everywhere gravity
#   can be learned, too.
# - An equation that is nearly right is good enough: what is wrong with it is what the Gaussian process learns.
# - States have to be those of the equation, in its units. They are as long as they are measured, as here, or the
#   emission says how outputs come from them.
# - A saved model does not hold your function: ``gpssm.load(path, functions={"mean": frictionless})`` hands it in again.
# - If the equation is right but for some numbers, rather fit these numbers by least squares: :doc:`/methods`.
