"""`gpssm filter`: the hidden states of a recording."""

from pathlib import Path

from gpssm.cli.files import check_target, load_model, read_recording
from gpssm.cli.output import print_columns, print_line, working
from gpssm.errors import InvalidInput
from gpssm.posteriors.posterior import Posterior


def run(
    model: Path,
    data: Path,
    out: Path,
    smooth: bool,
    filter_: str | None,
    outputs: list[str] | None,
    inputs: list[str] | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Read, filter, write a row for every sample."""
    if smooth and filter_ is not None:
        raise InvalidInput("filter: later samples are used by the ensemble alone; leave out --filter or --smooth.")
    check_target(out, model, data)
    fitted = load_model(model)
    if filter_ is not None and not isinstance(fitted, Posterior):
        raise InvalidInput("filter: this model is linear and is filtered exactly; leave out --filter.")
    recording = read_recording(data, fitted, outputs, inputs)
    with working("smoothing" if smooth else "filtering", quiet):
        if isinstance(fitted, Posterior) and filter_ is not None:
            states = fitted.filter(recording.outputs, recording.inputs, filter=filter_)
        else:
            states = (fitted.smooth if smooth else fitted.filter)(recording.outputs, recording.inputs)
    columns = {
        f"x{i + 1}_{name}": values[:, i]
        for i in range(fitted.state_dim)
        for name, values in (("mean", states.mean), ("sd", states.std))
    }
    about = {
        "model": str(model),
        "data": str(data),
        "samples": len(states.mean),
        "state_dim": fitted.state_dim,
        "smoothed": smooth,
        "log_likelihood": states.log_likelihood,
    }
    print_columns(columns, out, about, as_json, "sample")
    if not as_json:
        print_line(f"{len(states.mean)} samples, log-likelihood {states.log_likelihood:.6g}\nstates: {out}")
