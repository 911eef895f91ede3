"""The state-space model: transition, emission, noise, initial state."""

from gpssm.models.emission import FunctionEmission as FunctionEmission
from gpssm.models.emission import LinearEmission as LinearEmission
from gpssm.models.gpssm import GPSSM as GPSSM
from gpssm.models.gpssm import InitialState as InitialState
from gpssm.models.gpssm import Transition as Transition
from gpssm.models.noise import DiagonalNoise as DiagonalNoise
from gpssm.models.noise import FullNoise as FullNoise
from gpssm.models.student_t import StudentT as StudentT
