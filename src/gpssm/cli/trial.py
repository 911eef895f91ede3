"""A model on trial: a recording that it has not seen, and what comes before that."""

from pathlib import Path

from gpssm.cli.files import end_of, read_recording, reading, say_gap
from gpssm.cli.options import EvaluateOptions, PlotOptions
from gpssm.datasets.series import Series
from gpssm.errors import InvalidInput
from gpssm.online.stream import Stream
from gpssm.posteriors.fitted import Fitted
from gpssm.posteriors.states import States


def read_test(
    model: Fitted | Stream, options: EvaluateOptions | PlotOptions, data: Path, block: int
) -> tuple[Series | None, Series]:
    """What is seen before a test, if that does not continue the training data, and the test.

    Args:
        model: that is tested.
        options: the history that the test continues, whether it is fresh, and what its columns are called.
        data: file with the test.
        block: number of samples that are seen and not scored, where the test is a fresh experiment.
    """
    history, columns, how = options.history, (options.outputs, options.inputs), reading(options)
    if options.fresh and history is not None:
        raise InvalidInput("fresh: given with a history; expected one of them, a new experiment has no past.")
    test = read_recording(data, model, columns, how)
    if not options.fresh:
        past = None if history is None else read_recording(history, model, columns, how, "history")
        say_gap(end_of(model) if past is None else past.end, test, data, GAP)
        return past, test
    if len(test.outputs) <= block:
        raise InvalidInput(
            f"fresh: {block} samples to start from, but {str(data)!r} has {len(test.outputs)}; expected more."
        )
    return test.rows(slice(None, block)), test.rows(slice(block, None))


GAP = "--history gives the samples in between, --fresh takes it as a new experiment"
"""What to do where the test does not follow what was seen before."""


def state_after(fitted: Fitted, past: Series | None) -> States:
    """The state that a test starts from: after its past, or at the end of the training data."""
    return fitted.end if past is None else fitted.filter(past.outputs, past.inputs)
