"""Learning from a recording: initialisation, windows, the optimiser, progress."""
