"""VJF: a network that recognises the state, and radial basis functions that move it."""
