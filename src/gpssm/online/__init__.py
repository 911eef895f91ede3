"""Learning live: one sample at a time, in constant memory (Section V)."""
