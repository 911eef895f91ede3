"""What starts processes: pools, Dask clusters, sweeps, and what a process sets up before JAX."""
