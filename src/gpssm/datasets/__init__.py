"""Data: simulated systems with a known truth."""

from gpssm.datasets.kink import kink as kink
from gpssm.datasets.kink import kink_function as kink_function
from gpssm.datasets.series import Series as Series
