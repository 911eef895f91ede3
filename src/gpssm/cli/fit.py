"""`gpssm fit`: a model of the user's recordings, in one file."""

import signal
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import typer

from gpssm.cli.files import check_target, read_recordings, save_somewhere, saying_data_warnings
from gpssm.cli.options import FitOptions
from gpssm.cli.output import print_json, print_line
from gpssm.errors import InvalidInput
from gpssm.methods import registry
from gpssm.methods.base import StateSpaceMethod
from gpssm.methods.checked import why_not
from gpssm.plumbing.interruption import INTERRUPTED
from gpssm.plumbing.messages import say
from gpssm.posteriors.fitted import Fitted
from gpssm.training.linear_search import AUTO
from gpssm.training.optimiser import Diverged, TrainingWarning

NDArray = np.ndarray

DEFAULTS: dict[str, Any] = {"state_dim": AUTO}
"""Of the methods that have such choices."""
HOLDOUT = 0.2
"""What is held back to check a model with, where there is enough."""


def run(options: FitOptions) -> None:
    """Fit a method to recordings, save the model, and print a summary or JSON."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a request to end is an interrupt, too
    fit = _fit_of(options)
    check_target(options.out, *options.data)
    data = read_recordings(options)
    started = time.perf_counter()
    try:
        with saying_data_warnings(), warnings.catch_warnings():
            warnings.simplefilter("ignore", TrainingWarning)  # what they say is in the history
            limits = {"holdout": _holdout(options, data.outputs), "max_seconds": options.max_seconds}
            fitted = fit(data, seed=options.seed, progress=not options.quiet, **limits)
    except Diverged as error:
        say(str(error))
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        say("interrupted before there was a model to save.")
        raise typer.Exit(INTERRUPTED) from error
    seconds = time.perf_counter() - started
    fitted = fitted.named(data.output_names, data.input_names, fitted.end.times)  # two columns may share a name
    try:
        saved, failures = save_somewhere(fitted, options.out)
    except OSError as error:
        say(str(error))
        raise typer.Exit(1) from error
    history, summary = fitted.history, fitted.summary()
    if options.as_json:
        print_json(
            {
                "model": str(saved),
                **summary.course(),
                "state_dim": fitted.state_dim,
                "outputs": list(data.output_names),
                "inputs": list(data.input_names),
                "recordings": len(data.outputs),
                "samples": fitted.num_samples,
                "fit_seconds": seconds - history.compile_seconds,
                "compile_seconds": history.compile_seconds,
                "interrupted": history.interrupted,
            }
        )
    elif not history.interrupted:
        print_line(f"{summary}\n\nmodel: {saved}")
    if history.interrupted:
        say(f"interrupted; the best model so far, of {summary.iterations} steps, was saved as {str(saved)!r}.")
    if failures:
        say(f"cannot write {', nor '.join(failures)}; the model is in {str(saved)!r} instead.")
        raise typer.Exit(1)
    if history.interrupted:
        raise typer.Exit(INTERRUPTED)


def _holdout(options: FitOptions, outputs: list[NDArray]) -> float:
    """The share that was asked for; or the usual one, if there is enough to hold back."""
    if options.holdout is not None:
        return options.holdout
    reason = why_not(outputs, HOLDOUT)
    if reason:
        say(f"the model is not checked: {reason}.")
    return 0.0 if reason else HOLDOUT


def _fit_of(options: FitOptions) -> Callable[..., Fitted]:
    """The `fit` of the method that was chosen."""
    offered: dict[str, Any] = {name: getattr(options, name) for name in ("state_dim", "num_inducing", "likelihood")}
    if offered["state_dim"] == AUTO:
        offered["state_dim"] = None  # as it is where there is anything to choose
    elif offered["state_dim"] is not None:
        offered["state_dim"] = _number("state_dim", offered["state_dim"])
    given = {name: value for name, value in offered.items() if value is not None}
    method = registry.build(options.method, **registry.applicable(options.method, **DEFAULTS) | given)
    fit: Callable[..., Fitted] = method.fit
    if isinstance(method, StateSpaceMethod):
        return partial(fit, restarts=options.restarts)
    if options.restarts is not None:
        raise InvalidInput(f"restarts: {method.name} is fitted once, nothing in it is random; leave it out.")
    return fit


def _number(argument: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise InvalidInput(f"{argument}: expected a whole number of at least 1, or auto, got {text!r}.")
    return int(text)
