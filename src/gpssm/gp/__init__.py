"""Gaussian processes: kernels, mean functions, the sparse posterior q(u)."""

from gpssm.gp.kernels import RBF as RBF
from gpssm.gp.kernels import Kernel as Kernel
from gpssm.gp.kernels import Matern32 as Matern32
from gpssm.gp.kernels import Matern52 as Matern52
from gpssm.gp.kernels import Product as Product
from gpssm.gp.kernels import Sum as Sum
from gpssm.gp.means import Function as Function
from gpssm.gp.means import Identity as Identity
from gpssm.gp.means import Linear as Linear
from gpssm.gp.means import Mean as Mean
from gpssm.gp.means import Zero as Zero
from gpssm.gp.sparse import SparseGP as SparseGP
