"""SVMC: particles, their proposal, and what is learned by gradient."""
