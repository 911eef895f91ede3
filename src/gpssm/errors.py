"""What a user can have done wrong. Kept free of imports, so that the command line can name it at once."""


class InvalidInput(ValueError):
    """An argument that cannot be used, explained in one sentence."""


class Forked(RuntimeError):
    """A computation in a process in which it would hang, explained in one sentence."""
