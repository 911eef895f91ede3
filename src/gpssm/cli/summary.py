"""`gpssm summary`: what a model has learned, and what from."""

from typing import Any

from gpssm.cli.files import load_forecaster, method_of
from gpssm.cli.options import SummaryOptions
from gpssm.cli.output import print_json, print_line
from gpssm.online.stream import Stream
from gpssm.posteriors.fitted import Fitted


def run(options: SummaryOptions) -> None:
    """Read, and print what is known: the facts, then the parameters."""
    model = load_forecaster(options.model)
    facts = _facts(model)
    fitted = model if isinstance(model, Fitted) else model.posterior() if model.readable and model.ready else None
    learned = None if fitted is None else fitted.summary()
    if options.as_json:
        print_json({"model": str(options.model), **facts, **({} if learned is None else learned.as_dict())})
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        if value not in (None, []):
            shown = ", ".join(value) if isinstance(value, list) else value
            print_line(f"{name.replace('_', ' '):<{width}}  {shown}")
    if learned is not None:
        print_line(f"\n{learned}")


def _facts(model: Fitted | Stream) -> dict[str, Any]:
    """What was learned from; of a stream also what was not believed."""
    facts: dict[str, Any] = {
        "method": method_of(model),
        "states": model.state_dim,
        "outputs": list(model.output_names),
        "inputs": list(model.input_names),
    }
    if isinstance(model, Stream):
        return facts | {
            "samples": model.count,
            "refused": model.refused,
            "given_up": model.given_up,
            "ready": "yes" if model.ready else f"no, it looks at {model.method.warm_up} samples first",
        }
    times, kept = model.recording.times, len(model.recording.outputs)
    span = None if times is None else [times.text(1)[0], times.later(kept - 1).text(1)[0]]
    return facts | {"samples": model.num_samples, "kept": kept, "kept_from_to": span}
