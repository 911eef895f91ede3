"""Transitions that are neural networks."""
