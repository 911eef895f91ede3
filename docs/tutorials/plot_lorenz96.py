"""
Lorenz-96: many states, few members, localisation
=================================================

Ten members of an ensemble cannot know the covariance of forty states: what happened by chance they take for a law.
Weather services live with that, and have two remedies. *Localisation*: what is far apart is told to be independent.
*Inflation*: the ensemble is pulled apart a little in every step. This page filters Lorenz's model of 1996 without and
with them. Nothing is learned here: the model is known, and :mod:`gpssm.filters.ensemble` is used by itself.
"""

# %%
# A ring of weather
# -----------------
# Forty places on a circle of latitude, with one number each, and chaos: two states that hardly differ are strangers
# after some weeks. A time step of 0.05 stands for six hours. Every place is measured in every step, with a noise of
# standard deviation one.

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import gpssm
from gpssm.datasets import lorenz96_function
from gpssm.filters import ensemble
from gpssm.filters.small_ensembles import gaspari_cohn
from gpssm.models import DiagonalNoise, LinearEmission
from gpssm.plots import BLUE, GREEN, GREY, ORANGE

PLACES, STEPS_A_DAY = 40, 4
data = gpssm.datasets.lorenz96(length=1001, seed=0)  # 250 days
truth, readings = data.states[1:], data.outputs[1:]
print(f"the states: mean {truth.mean():.1f}, standard deviation {truth.std():.1f}, noise of the readings 1.0")

# %%
# The filter
# ----------
# :func:`gpssm.filters.ensemble.run` asks for a transition, which says where the members go and what is not known of it
# (nothing, here); for what comes after it, noises and emission; and for members to begin with, which are a little off
# the truth. Localisation is a *taper*: the covariance is multiplied by it, element by element. It is one on the
# diagonal, falls with the distance on the ring, and is zero beyond twice its radius.


def transition(members):
    return lorenz96_function(members), DiagonalNoise(jnp.zeros_like(members))


def taper(radius):
    """(40, 40); of an infinite radius it is one everywhere, and nothing is localised."""
    apart = np.abs(np.arange(PLACES)[:, None] - np.arange(PLACES))
    return gaspari_cohn(jnp.asarray(np.minimum(apart, PLACES - apart), float), radius)


run = jax.jit(ensemble.run, static_argnames=("transition", "options"))
no_process_noise, unit_noise = DiagonalNoise(np.zeros(PLACES)), DiagonalNoise(np.ones(PLACES))
every_place = LinearEmission(np.eye(PLACES), np.zeros(PLACES))


def follow(members, radius=np.inf, inflation=1.0):
    """The filtered states, mean and standard deviation, (1000, 40) each."""
    trace = run(
        transition=transition,
        observing=ensemble.Observing(no_process_noise, every_place, unit_noise, taper(radius)),
        first=jnp.asarray(data.states[0] + np.random.default_rng(0).normal(size=(members, PLACES))),
        outputs=jnp.asarray(readings),
        inputs=jnp.zeros((len(readings), 0)),
        key=jax.random.key(0),
        options=ensemble.Options(update="perturbed", inflation=inflation),
    )
    variances = np.diagonal(np.asarray(trace.cov), axis1=1, axis2=2)
    return np.asarray(trace.mean), np.sqrt(np.maximum(variances, 0))


# %%
# Without and with
# ----------------
# Ten members, with neither remedy, with one, with both; and forty members that are only inflated. The error is the root
# mean square over places. The last column is what the ensemble itself believes its error to be.

runs = {
    "10 members": follow(10),
    "10, inflated": follow(10, inflation=1.06),
    "10, localised": follow(10, radius=7),
    "10, localised and inflated": follow(10, radius=7, inflation=1.06),
    "40, inflated": follow(40, inflation=1.06),
}


def over_places(numbers):
    return np.sqrt(np.mean(numbers**2, axis=1))


SETTLED = slice(25 * STEPS_A_DAY, None)
print("after the first 25 days         error   believed")
for name, (mean, std) in runs.items():
    error, believed = over_places(mean - truth)[SETTLED].mean(), over_places(std)[SETTLED].mean()
    print(f"{name:29} {error:7.2f} {believed:10.2f}")
print(f"{'the readings alone':29} {over_places(readings - truth)[SETTLED].mean():7.2f}")

# %%
# Without both remedies the filter is worse than no filter at all, and knows nothing of it: the ensemble has collapsed,
# believes itself, and hardly looks at the readings any more. Here ten members need both; then they come near to what
# forty have, with a quarter of the runs of the model, and know about how large their error is.

days = np.arange(1, len(truth) + 1) / STEPS_A_DAY
fig, ax = plt.subplots(figsize=(8, 3.6), layout="constrained")
for (name, (mean, _)), colour in zip(runs.items(), (ORANGE, "#8b3a8b", GREY, BLUE, GREEN), strict=True):
    ax.plot(days, over_places(mean - truth), color=colour, lw=1.2, label=name)
ax.axhline(1, color="black", lw=0.8, ls=":", label="the readings alone")
ax.set(xlabel="time [days]", ylabel="error, RMS over places", yscale="log", ylim=(0.1, 20), xlim=(0, 250))
ax.set_yticks([0.2, 0.5, 1, 2, 5], ["0.2", "0.5", "1", "2", "5"])
ax.set_yticks([], minor=True)
ax.set_title("Error of the filtered state")
ax.legend(frameon=False, fontsize=8, ncols=3, loc="upper left")
plt.show()

# %%
# In space and time
# -----------------
# The first 25 days. Both filters begin from the same members. That without remedies is lost within days: it still draws
# weather that looks like weather, but of another planet.

fig, axes = plt.subplots(3, 2, figsize=(8, 6.5), layout="constrained", sharex=True, sharey=True)
part = slice(0, 25 * STEPS_A_DAY)
alone, both = (runs[name][0] for name in ("10 members", "10, localised and inflated"))
pictures = (("truth", truth), ("readings", readings), ("10 members", alone), ("its error", alone - truth),
            ("10, localised and inflated", both), ("its error", both - truth))  # fmt: skip
for ax, (name, values) in zip(axes.flat, pictures, strict=True):
    of_errors = name == "its error"
    limits = {"vmin": -5, "vmax": 5, "cmap": "RdBu_r"} if of_errors else {"vmin": -8, "vmax": 12, "cmap": "viridis"}
    image = ax.imshow(values[part].T, aspect="auto", origin="lower", extent=(0, 25, 0.5, PLACES + 0.5), **limits)
    ax.set_title(name, fontsize=10)
    if ax in axes[-1]:
        beside = axes[1:, 1] if of_errors else axes[:, 0]
        label = "error" if of_errors else "state"
        fig.colorbar(image, ax=beside, shrink=0.7, aspect=40, location="bottom", label=label)
for ax in axes[:, 0]:
    ax.set_ylabel("place")
for ax in axes[-1]:
    ax.set_xlabel("time [days]")
plt.show()

# %%
# How far is far?
# ---------------
# A small radius throws away what the ensemble does know, a large one keeps what it does not. Between them there is
# room.

radii = [1, 2, 3, 4, 5, 7, 10, 14, 20]
found = [follow(10, radius=radius, inflation=1.06) for radius in radii]
errors = [over_places(mean - truth)[SETTLED].mean() for mean, _ in found]
believed = [over_places(std)[SETTLED].mean() for _, std in found]

fig, ax = plt.subplots(figsize=(8, 3), layout="constrained")
ax.plot(radii, errors, "o-", color=BLUE, label="error")
ax.plot(radii, believed, "o--", color=ORANGE, label="what the ensemble believes")
ax.axhline(1, color="black", lw=0.8, ls=":", label="the readings alone")
ax.set(xscale="log", yscale="log", xlabel="radius of the taper [places]", ylabel="error after 25 days")
ax.set_xticks(radii, radii)
ax.set_xticks([], minor=True)
ax.set_yticks([0.2, 0.5, 1, 2, 5], ["0.2", "0.5", "1", "2", "5"])
ax.set_yticks([], minor=True)
ax.legend(frameon=False, fontsize=8)
plt.show()

# %%
# With a radius of a few places the error hardly depends on it, and the ensemble knows its error. Beyond ten places the
# filter is lost, and says the opposite: what it believes keeps falling. How far is far depends on the number of
# members; where the truth is not known, compare what the ensemble believes of the next reading with the reading.
#
# In a fit
# --------
# :class:`gpssm.EnVI` has both as arguments, ``localization=`` and ``inflation=``; a distance is there one of positions
# in the state, on a line and not on a ring. They are for states that lie in space. With the few states that a Gaussian
# process learns well there are always more members than states, and neither is needed.
#
# ``gpssm reproduce filters`` runs Lorenz-96 for longer and with other updates, beside the errors that the literature
# has for the same settings: also a square root filter that gets along with seven members. :doc:`/methods` says which
# method learns f where it is not known.
