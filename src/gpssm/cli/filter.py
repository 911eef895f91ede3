"""`gpssm filter`: the hidden states of a recording."""

from gpssm.cli.files import check_target, load_model, read_recording, reading
from gpssm.cli.options import FilterOptions
from gpssm.cli.output import print_columns, print_line, with_times, working
from gpssm.errors import InvalidInput


def run(options: FilterOptions) -> None:
    """Read, filter, write a row for every sample."""
    model, data, out, smooth = options.model, options.data, options.out, options.smooth
    if smooth and options.filter is not None:
        raise InvalidInput("filter: later samples are used by the ensemble alone; leave out --filter or --smooth.")
    check_target(out, model, data)
    fitted = load_model(model)
    chosen = fitted.check_filter(options.filter)
    recording = read_recording(data, fitted, (options.outputs, options.inputs), reading(options))
    with working("smoothing" if smooth else "filtering", options.quiet):
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
    print_columns(with_times(recording.times, shown), out, about, options.as_json, "sample")
    if not options.as_json:
        print_line(f"{len(states.mean)} samples, log-likelihood {states.log_likelihood:.6g}\nstates: {out}")
