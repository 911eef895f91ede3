"""Samples that come one by one, from a pipe or from Redis, into a stream that survives `kill -9`."""
