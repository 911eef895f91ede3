"""Errors of this package. Kept free of imports, so that the command line can name them at once."""


class InvalidInput(ValueError):
    """An argument that cannot be used: its name, what it was and what is expected, in one sentence.

    >>> from gpssm import datasets
    >>> datasets.kink(length=0)
    Traceback (most recent call last):
    gpssm.errors.InvalidInput: length: expected a whole number of at least 1, got 0.
    """


class Forked(RuntimeError):
    """A computation in a process that was forked after JAX had been used, in which it would hang."""


class DataWarning(UserWarning):
    """Data that can be used but look wrong; says which column, and what to do."""
