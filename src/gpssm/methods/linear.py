"""What the methods with a linear Gaussian posterior have in common: all but the matrices."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from gpssm.filters.kalman import Gaussian, System
from gpssm.models.scaling import Scaling, moments
from gpssm.plumbing.compilation import CompileClock
from gpssm.plumbing.precision import double_precision
from gpssm.plumbing.validation import training_data
from gpssm.posteriors.history import History, Progress
from gpssm.posteriors.linear import LinearPosterior

NDArray = np.ndarray
Reported = bool | Callable[[Progress], None]


class LinearFit(NamedTuple):
    """A linear Gaussian system in standardised units; what it does not say is zero."""

    system: System
    prior: Gaussian
    """Of the state one step before the first sample of a recording."""
    scaling: Scaling
    input_weight: NDArray | None = None
    """B (dx, dc)."""
    bias: NDArray | None = None
    """b (dx,)."""
    history: History | None = None


class LinearMethod(ABC):
    """A method that learns a linear Gaussian system."""

    name: str
    fixed: ClassVar[tuple[str, ...]]
    """Names of the parameters that are not learned."""

    @abstractmethod
    def learn(self, outputs: list[NDArray], inputs: list[NDArray], progress: Reported) -> LinearFit:
        """The system, from checked recordings (T_i, dy) and (T_i, dc) in the user's units."""

    @double_precision
    def fit(
        self,
        outputs: Any,
        inputs: Any = None,
        *,
        seed: int = 0,
        progress: bool | Callable[[Progress], None] = False,
    ) -> LinearPosterior:
        """Learn the model from a recording.

        Args:
            outputs: (T, dy), NaN where a value is missing; or a list of such arrays.
            inputs: (T, dc) known inputs, the row that acts on the way to the same row of
                `outputs`; or a list of such arrays. Not used where outputs are forecast from themselves alone.
            seed: not used; nothing here is random.
            progress: show a progress bar, or call this function after every iteration, where there are any.
        """
        clock = CompileClock()
        ys, cs = training_data(outputs, inputs)
        fit = self.learn(ys, cs, progress)
        dx, dc = len(fit.prior.mean), cs[0].shape[1]
        posterior = LinearPosterior(
            system=fit.system,
            input_weight=np.zeros((dx, dc)) if fit.input_weight is None else fit.input_weight,
            bias=np.zeros(dx) if fit.bias is None else fit.bias,
            prior=fit.prior,
            scaling=fit.scaling,
            history=History(converged=True) if fit.history is None else fit.history,
            method=self.name,
            final=fit.prior,
            fixed=self.fixed,
        ).learned_from(ys, cs)
        posterior.history.compile_seconds = clock.seconds
        return posterior


def observed_scaling(outputs: list[NDArray], inputs: list[NDArray], state_dim: int) -> Scaling:
    """Units where the first states are the outputs; the others have none."""
    shift, scale = moments(outputs)
    hidden = state_dim - len(shift)
    return Scaling(
        np.pad(shift, (0, hidden)), np.pad(scale, (0, hidden), constant_values=1.0), shift, scale, *moments(inputs)
    )
