"""`gpssm filter`: the hidden states of a recording."""

from pathlib import Path

from gpssm.cli.files import Columns, check_target, load_model, read_recording
from gpssm.cli.output import print_columns, print_line, working
from gpssm.errors import InvalidInput


def run(
    model: Path, data: Path, out: Path, smooth: bool, filter_: str | None, columns: Columns, as_json: bool, quiet: bool
) -> None:
    """Read, filter, write a row for every sample."""
    if smooth and filter_ is not None:
        raise InvalidInput("filter: later samples are used by the ensemble alone; leave out --filter or --smooth.")
    check_target(out, model, data)
    fitted = load_model(model)
    chosen = fitted.check_filter(filter_)
    recording = read_recording(data, fitted, columns)
    with working("smoothing" if smooth else "filtering", quiet):
        if smooth:
            states = fitted.smooth(recording.outputs, recording.inputs)
        else:
            states = fitted.filter(recording.outputs, recording.inputs, filter=chosen)
    found = {"mean": states.mean, "sd": states.std}
    shown = {f"x{i + 1}_{name}": values[:, i] for i in range(fitted.state_dim) for name, values in found.items()}
    about = {
        "model": str(model),
        "data": str(data),
        "samples": len(states.mean),
        "state_dim": fitted.state_dim,
        "smoothed": smooth,
        "log_likelihood": states.log_likelihood,
    }
    print_columns(shown, out, about, as_json, "sample")
    if not as_json:
        print_line(f"{len(states.mean)} samples, log-likelihood {states.log_likelihood:.6g}\nstates: {out}")
