"""
Which method? Comparing them honestly
=====================================

One forecast that went well says little, and one that went badly as little. :func:`gpssm.backtest` lets several methods
forecast a recording from several of its samples, each time from nothing but what came before. Here that is done twice
with the same two tanks: once they are driven through all they can do, once they stay near one level. The answers
differ, and both are right.
"""

# %%
# Two tanks and a valve
# ---------------------
# A valve fills the upper tank, which drains into the lower one, which drains away. What drains goes with the root of
# the level, and at 1 m a tank spills over. Both levels are read every ten seconds, with a noise of 1 cm; how far the
# valve is open is known.

import time

import matplotlib.pyplot as plt
import numpy as np

import gpssm
from gpssm.parallel.backtest import Backtest
from gpssm.plots import BLUE, GREEN, GREY, ORANGE

COLOURS = {"EnVI": BLUE, "OEnVI": GREEN, "ARX": ORANGE, "LinearGaussian": GREY}


def tanks(closed, opened, seed, length=500):
    """A recording of both levels in m, with a valve that moves between two openings from 0 to 1."""
    rng, levels, states = np.random.default_rng(seed), np.array([0.4, 0.4]), []
    valve = np.repeat(rng.uniform(closed, opened, length // 12 + 1), 12)[:length]
    for opening in valve:
        for _ in range(10):  # small steps in between
            (upper, lower), (over, below) = 0.5 * np.sqrt(levels), 5.0 * np.maximum(levels - 1.0, 0.0)
            flows = np.array([0.8 * opening - upper - over, upper - lower - below])
            levels = np.maximum(levels + 0.025 * flows, 0.001)
        levels = np.maximum(levels + 0.005 * rng.normal(size=2), 0.001)  # nothing is perfect
        states.append(levels)
    readings = np.array(states) + 0.01 * rng.normal(size=(length, 2))
    return gpssm.datasets.Series(readings, valve[:, None], None, ("upper", "lower"), ("valve",))


wide = tanks(0.0, 1.0, seed=0)

# %%
# A backtest
# ----------
# Six forecasts of 30 samples (five minutes), one after the other up to the end of the recording. A method learns once,
# from what comes before the first of them; before each of the others it sees what has come since, and only its state
# follows. A method that learns live goes on learning. The valve is known in advance, the levels are not.
#
# In a script of your own, this is
#
# .. code-block:: python
#
#    if __name__ == "__main__":  # every process that is started imports this script
#        found = gpssm.backtest(methods, wide, horizon=30, origins=6)
#
# and it starts a process for every core. This page stays in the one that it is run in, and does the same by a loop.
# That is all there is to it:

HORIZON, ORIGINS = 30, 6


def backtest(methods, data):
    """What ``gpssm.backtest`` does, in this process."""
    starts = range(len(data.outputs) - ORIGINS * HORIZON, len(data.outputs), HORIZON)
    past, paths, seconds = data.rows(slice(starts[0])), {}, {}
    for name, method in methods.items():
        began, paths[name], live = time.perf_counter(), [], hasattr(method, "start")
        if live:
            model, now = method.start(seed=0), {}
            model.learn_many(past.outputs, past.inputs)
        else:
            model = method.fit(past.outputs, past.inputs, seed=0)
            now = {"state": model.end}
        for place, start in enumerate(starts):
            ahead = data.rows(slice(start, start + HORIZON))
            paths[name].append(model.forecast(HORIZON, ahead.inputs, num_paths=300, seed=place, **now).samples)
            if live:  # only now may it look
                model.learn_many(ahead.outputs, ahead.inputs)
            else:
                now = {"state": model.filter(ahead.outputs, ahead.inputs, **now)}
        seconds[name] = time.perf_counter() - began
    return Backtest(data, tuple(starts), HORIZON, paths, {}, seconds)


# %%
# EnVI, its sister that learns live, and two lines. Both levels are read, so that two states are enough. (The schedule
# of EnVI is short to keep this page quick; leave it out of your own.) By name, ``"EnVI"``, a method would look for the
# number of states by itself.

methods = {
    "EnVI": gpssm.EnVI(2, 15, schedule=gpssm.Schedule(max_steps=400)),
    "OEnVI": gpssm.OEnVI(2),
    "ARX": gpssm.ARX(),
    "LinearGaussian": gpssm.LinearGaussian(2),
}
found = backtest(methods, wide)
print(found)

# %%
# Root mean square errors in metres, the fit (100 is perfect, 0 is the mean of what was forecast), the share of the
# levels inside the 90% band, and seconds, most of which are compilation. The last line is the verdict. Its rule: a line
# is named where it is surely not worse than the best other method by more than a tenth; in doubt it is the other one.


def draw_forecasts(found, names):
    """The lower tank: what was read, and the forecasts of two methods, one after the other."""
    first, minutes = found.origins[0], np.arange(len(found.data.outputs)) / 6
    to_come = minutes[first:]
    fig, axes = plt.subplots(2, 1, figsize=(8, 4.8), layout="constrained", sharex=True, sharey=True)
    for ax, name in zip(axes, names, strict=True):
        ahead = found.forecast(name)
        low, high = ahead.band(0.9)
        ax.plot(minutes[first - 60 :], found.data.outputs[first - 60 :, 1], ".", color="black", ms=2, label="read")
        ax.fill_between(to_come, low[:, 1], high[:, 1], color=COLOURS[name], alpha=0.25, lw=0, label="90% band")
        ax.plot(to_come, ahead.mean[:, 1], color=COLOURS[name], lw=1.5, label="forecast")
        for start in found.origins:
            ax.axvline(minutes[start], color=GREY, lw=0.8, ls=":")
        ax.set(title=name, ylabel="lower level [m]", xlim=(minutes[first - 60], minutes[-1]))
    fig.legend(*axes[0].get_legend_handles_labels(), frameon=False, fontsize=8, loc="outside upper right", ncols=3)
    axes[-1].set_xlabel("time [min]")
    plt.show()


draw_forecasts(found, ("EnVI", "ARX"))

# %%
# Every dotted line is a new start. A tank that spills over does not rise any more; a line cannot know that, and ARX
# takes the level well above 1 m.
#
# The spread
# ----------
# A mean over six forecasts hides how different they are. ``found.rows`` has a row for every method, start and output.


def of_every_forecast(found, number):
    """By method, a number of every forecast, over both outputs: the root mean square of errors, the mean of shares."""
    rows = {name: [row[number] for row in found.rows if row["method"] == name] for name in found.paths}
    both = {name: np.reshape(values, (-1, 2)) for name, values in rows.items()}
    if number == "rmse":
        return {name: np.sqrt(np.mean(values**2, axis=1)) for name, values in both.items()}
    return {name: values.mean(axis=1) for name, values in both.items()}


def draw_spread(found):
    """Error and coverage from every start, and their means with standard errors."""
    _, axes = plt.subplots(1, 2, figsize=(8, 2.8), layout="constrained")
    for ax, number in zip(axes, ("rmse", "coverage90"), strict=True):
        values = {name: 100 * each for name, each in of_every_forecast(found, number).items()}  # cm, and per cent
        for place, each in enumerate(zip(*values.values(), strict=True)):
            label = "one start" if not place else None
            ax.plot(each, color=GREY, lw=0.7, marker=".", ms=5, alpha=0.7, label=label)
        for column, (name, each) in enumerate(values.items()):
            error = each.std(ddof=1) / np.sqrt(len(each))
            ax.errorbar(column, each.mean(), error, color=COLOURS[name], marker="o", ms=7, capsize=5, lw=2)
        ax.set_xticks(range(len(values)), list(values), fontsize=8)
        ax.set_xlim(-0.4, len(values) - 0.6)
    axes[0].set(ylabel="RMSE [cm]", ylim=(0, None), title="Error")
    axes[1].set(ylabel="inside 90% band [%]", ylim=(0, 104), title="Coverage")
    axes[1].axhline(90, color="black", lw=0.8, ls="--")
    axes[0].legend(frameon=False, fontsize=8)
    plt.show()


draw_spread(found)

# %%
# A grey line is one start, a big dot the mean over all six, with its standard error. The starts differ more than the
# methods do, since some stretches are harder than others: from some of them a line is as good as EnVI, or better, from
# others it is hopeless. Any one of them alone would have told a story. So compare within each start, and look at how
# much the ratios differ:


def beside(found, reference="EnVI"):
    """Print the errors relative to those of one method, forecast by forecast."""
    errors = of_every_forecast(found, "rmse")
    print(f"error relative to {reference}, forecast by forecast      mean, and within a standard error")
    for name in errors:
        if name != reference:
            ratio = np.log(errors[name] / errors[reference])
            doubt = ratio.std(ddof=1) / np.sqrt(len(ratio))
            low, mean, high = np.exp(ratio.mean() + np.array([-doubt, 0.0, doubt]))
            each = " ".join(f"{r:5.2f}" for r in np.exp(ratio))
            print(f"{name:16} {each}      {mean:.2f}   {low:.2f} to {high:.2f}")


beside(found)

# %%
# The ratios are averaged as logarithms, so that twice and half the error cancel. Where 1 is within the last column,
# nothing has been shown. Both lines have about twice the error of EnVI, and that holds by more than a standard error.
# Two lessons beside:
#
# - The first table favours EnVI more than this one. It squares, so that the worst forecast counts most. Which of the
#   two you want depends on what a bad forecast costs.
# - OEnVI begins badly and gets better. It has seen the recording once, and goes on learning from start to start; the
#   others have learned for good.
#
# As for the bands: errors hang together within a start, so that six starts cannot tell a coverage of 80% from one of
# 90%. They can tell that the bands of LinearGaussian, which hold less than a quarter from two of the starts, know
# nothing of the overflow.
#
# The same tanks, near one level
# ------------------------------
# Most plants are not driven from one end to the other, but held near a level. Here the valve stays between 0.45
# and 0.55. The physics is the same.

narrow = tanks(0.45, 0.55, seed=0)
found = backtest(methods, narrow)
print(found)
draw_forecasts(found, (found.best, "EnVI"))

# %%
# Hardly any difference can be seen.

draw_spread(found)
beside(found)

# %%
# Now all four are within a few per cent of each other. Over the starts errors differ by a factor of two; within each of
# them the lines and EnVI hardly do. A line is enough, and the verdict says so. Take it: it is fitted in a moment, and
# what it says can be read off a few numbers. The root and the overflow are still there; between 0.4 and 0.8 m they do
# not matter.
#
# So the answer is not one about tanks. It is one about this recording, and about a future that resembles it. If the
# valve will be opened fully tomorrow, neither the model nor the verdict of today is worth much.
#
# What makes it honest
# --------------------
# - **Nothing from the future**: what is learned from ends before the first start. Inputs are known ahead here, so they
#   have to be known ahead where the forecast is used, too.
# - **The horizon you need**: a method that is best for one step need not be for thirty.
# - **Several starts**, and the spread over them beside the mean.
# - **Simple ones among the methods**: lines, and ``"LastValue"`` and ``"TrainingMean"``, which anything has to beat.
# - **No turning of knobs until one wins.** Who tries twenty settings on six forecasts will find a good one. Keep
#   an end of the recording for the last word.
#
# The same from a shell, with a picture, is ``gpssm compare recording.csv --outputs upper,lower --inputs valve``;
# without being asked for others it takes EnVI, the two lines and these two. What every method is good at, and what it
# is not: :doc:`/methods`.
