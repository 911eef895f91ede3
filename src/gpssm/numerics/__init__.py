"""Arithmetic: factorisations, a fast exponential, parameters in their legal form, small networks."""
