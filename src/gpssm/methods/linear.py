"""What the methods with a linear Gaussian posterior have in common: all but the matrices."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from gpssm.filters.kalman import Gaussian, System
from gpssm.methods.checked import Recordings, Stage, checked
from gpssm.models.scaling import Scaling, moments
from gpssm.plumbing.compilation import CompileClock
from gpssm.plumbing.docstrings import Described
from gpssm.plumbing.interruption import Interruption
from gpssm.plumbing.precision import double_precision
from gpssm.plumbing.validation import training_data
from gpssm.posteriors.history import History, Progress
from gpssm.posteriors.linear import LinearPosterior
from gpssm.training.progress import Watch, watcher

NDArray = np.ndarray


class LinearMethod(Described, ABC):
    """A method that learns a linear Gaussian system.

    Args:
        name: of the method in tables and summaries.
    """

    name: str
    fixed: ClassVar[tuple[str, ...]]
    """Names of the parameters that are not learned."""

    @abstractmethod
    def learn(self, outputs: list[NDArray], inputs: list[NDArray], progress: bool | Watch) -> LinearPosterior:
        """The system, from checked recordings (T_i, dy) and (T_i, dc) in the user's units."""

    def posterior(
        self,
        system: System,
        prior: Gaussian,
        scaling: Scaling,
        input_weight: NDArray | None = None,
        bias: NDArray | None = None,
        history: History | None = None,
    ) -> LinearPosterior:
        """What was learned, in standardised units; B (dx, dc) and b (dx,) are zero unless they are given."""
        dx, dc = len(prior.mean), len(scaling.input_shift)
        return LinearPosterior(
            system=system,
            input_weight=np.zeros((dx, dc)) if input_weight is None else input_weight,
            bias=np.zeros(dx) if bias is None else bias,
            prior=prior,
            scaling=scaling,
            history=History(converged=True) if history is None else history,
            method=self.name,
            final=prior,
            fixed=self.fixed,
        )

    @double_precision
    def fit(
        self,
        outputs: Any,
        inputs: Any = None,
        *,
        seed: int = 0,
        holdout: float = 0.0,
        max_seconds: float | None = None,
        progress: bool | Watch = False,
    ) -> LinearPosterior:
        """Learn the model from a recording.

        Args:
            outputs: (T, dy), NaN where a value is missing; or a list of such arrays. Tables of pandas, polars or
                anything with `__dataframe__` keep their names, and an index of times, in all that the model returns.
                What `from_csv` has returned does so, too, and brings its inputs.
            inputs: (T, dc) known inputs, the row that acts on the way to the same row of
                `outputs`; or a list of such arrays. Of tables with an index the rows at that of `outputs`. Not used
                where outputs are forecast from themselves alone.
            seed: of the forecasts of a check; nothing else here is random.
            holdout: share of every recording, at its end, to check the model with: it is learned from without that
                end first, whose forecast is set beside those of simpler methods (`check`) and corrects the bands
                (`calibration`); then from everything.
            max_seconds: after which iterations, where there are any, end with the best model so far.
            progress: show a progress bar, or call this function after every iteration, where there are any.

        Returns:
            The fitted model, which filters, smooths and forecasts exactly.
        """
        clock, interruption = CompileClock(), Interruption(max_seconds)
        given = training_data(outputs, inputs)
        with watcher(progress, self.name) as watch:

            def limited(p: Progress) -> None:
                if watch is not None:
                    watch(p)
                if interruption.out_of_time:
                    raise StopIteration  # which ends an optimiser of SciPy with what it has

            def learn(data: Recordings, stage: Stage) -> LinearPosterior:
                learned = self.learn(*data, limited).learned_from(*data)
                return learned.named(*given.labels(len(data.outputs[-1])))

            posterior = checked(learn, Recordings(given.outputs, given.inputs), holdout, seed, interruption, watch)
        posterior.history.compile_seconds = clock.seconds
        return posterior


def observed_scaling(outputs: list[NDArray], inputs: list[NDArray], state_dim: int) -> Scaling:
    """Units where the first states are the outputs; the others have none."""
    shift, scale = moments(outputs)
    hidden = state_dim - len(shift)
    return Scaling(
        np.pad(shift, (0, hidden)), np.pad(scale, (0, hidden), constant_values=1.0), shift, scale, *moments(inputs)
    )
