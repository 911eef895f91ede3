"""Data: simulated systems with a known truth, published recordings, and your own files."""

from gpssm.datasets.car import Car as Car
from gpssm.datasets.car import car as car
from gpssm.datasets.csv_files import columns as columns
from gpssm.datasets.csv_files import from_csv as from_csv
from gpssm.datasets.csv_files import to_csv as to_csv
from gpssm.datasets.kink import kink as kink
from gpssm.datasets.kink import kink_function as kink_function
from gpssm.datasets.lorenz96 import lorenz96 as lorenz96
from gpssm.datasets.lorenz96 import lorenz96_function as lorenz96_function
from gpssm.datasets.nascar import Nascar as Nascar
from gpssm.datasets.nascar import nascar as nascar
from gpssm.datasets.nascar import nascar_function as nascar_function
from gpssm.datasets.registry import Benchmark as Benchmark
from gpssm.datasets.registry import Unseen as Unseen
from gpssm.datasets.registry import benchmark as benchmark
from gpssm.datasets.registry import load as load
from gpssm.datasets.registry import where as where
from gpssm.datasets.series import Series as Series
from gpssm.datasets.series import SeriesList as SeriesList
from gpssm.datasets.sources import SOURCES as SOURCES
from gpssm.datasets.sources import Source as Source
