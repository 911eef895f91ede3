"""`gpssm demo`: a system learned from scratch, with a table and a picture."""

import time

import matplotlib.pyplot as plt
from rich.console import Console
from rich.table import Table

from gpssm import plots
from gpssm.cli.options import DemoOptions
from gpssm.cli.output import print_json, save_figure
from gpssm.datasets import kink, kink_function
from gpssm.experiments import kink as experiment
from gpssm.methods.envi import EnVI

PROCESS_NOISE, OBS_NOISE, HORIZON = 0.05, 0.08, 50


def run(options: DemoOptions) -> None:
    """Simulate the kink system, fit EnVI to it, and leave a table, a picture and a model."""
    out, seed = options.out, options.seed
    out.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=options.as_json)
    data = kink(experiment.LENGTH + HORIZON, PROCESS_NOISE, OBS_NOISE, seed)
    train, future = data.outputs[: experiment.LENGTH], data.outputs[experiment.LENGTH :]
    console.print(
        f"Learning an unknown system from {len(train)} noisy numbers (noise, dynamics and state all unknown)."
    )
    started = time.perf_counter()
    method = EnVI(state_dim=1, num_inducing=experiment.NUM_INDUCING)
    fitted = method.fit(train, seed=seed, progress=not options.quiet)
    if fitted.history.interrupted:  # the best model so far would pass for what the method can do
        raise KeyboardInterrupt
    seconds = time.perf_counter() - started

    paths = fitted.forecast(HORIZON, seed=seed)
    low, high = paths.quantile([0.05, 0.95])
    result = experiment.score_fit(fitted, seconds) | {
        "obs_noise": float(fitted.model.obs_noise.variance[0] * fitted.scaling.output_scale[0] ** 2),
        "forecast_coverage90": float(((future >= low) & (future <= high)).mean()),
    }
    picture, model = out / "kink.png", out / "kink.gpssm"
    plt.switch_backend("Agg")
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    plots.transition(fitted, truth=kink_function, span=(-3.15, 1.15), states=data.states, ax=axes[0])
    axes[0].set_title("What was learned, and how sure it is")
    plots.forecast(paths, past=train[-40:], future=future, ax=axes[1])
    axes[1].set_title("Forecast from the end of the recording")
    save_figure(figure, picture, dpi=130)
    fitted.save(model)

    if options.as_json:
        print_json(result | {"picture": str(picture), "model": str(model)})
        return
    table = Table(title="kink system, learned by EnVI")
    for column in ("", "learned", "truth"):
        table.add_column(column, justify="left" if not column else "right")
    table.add_row("mean squared error of f", f"{result['mse']:.4f}", "0")
    table.add_row("log-density of the true f", f"{result['log_likelihood']:.3f}", "")
    table.add_row("process noise variance", f"{result['process_noise']:.4f}", f"{PROCESS_NOISE:g}")
    table.add_row("observation noise variance", f"{result['obs_noise']:.4f}", f"{OBS_NOISE:g}")
    table.add_row(
        f"share of the next {HORIZON} outputs in the 90% band", f"{result['forecast_coverage90']:.2f}", "0.90"
    )
    table.add_row("iterations", str(result["iterations"]), "")
    table.add_row("seconds (compiling + fitting)", f"{result['compile_seconds']:.1f} + {result['fit_seconds']:.1f}", "")
    console.print(table)
    console.print(f"picture: {picture}\nmodel:   {model}")
