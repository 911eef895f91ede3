"""A model on trial: a recording that it has not seen, and what comes before that."""

from pathlib import Path

from gpssm.cli.files import Columns, read_recording
from gpssm.datasets.series import Series
from gpssm.errors import InvalidInput
from gpssm.online.stream import Stream
from gpssm.posteriors.fitted import Fitted
from gpssm.posteriors.states import States


def read_test(
    data: Path, model: Fitted | Stream, columns: Columns, history: Path | None, seen: int | None
) -> tuple[Series | None, Series]:
    """What is seen before a test, if that does not continue the training data, and the test.

    Args:
        data: file with the test.
        model: that is tested.
        columns: of the file, if they are not called as in the training data.
        history: file that the test continues.
        seen: number of samples that are seen and not scored, where the test is a new experiment.
    """
    if seen is not None and history is not None:
        raise InvalidInput("fresh: given with a history; expected one of them, a new experiment has no past.")
    test = read_recording(data, model, columns)
    if seen is None:
        return (None if history is None else read_recording(history, model, columns)), test
    if len(test.outputs) <= seen:
        raise InvalidInput(
            f"fresh: {seen} samples to start from, but {str(data)!r} has {len(test.outputs)}; expected more."
        )
    return test.rows(slice(None, seen)), test.rows(slice(seen, None))


def state_after(fitted: Fitted, past: Series | None) -> States:
    """The state that a test starts from: after its past, or at the end of the training data."""
    return fitted.end if past is None else fitted.filter(past.outputs, past.inputs)
