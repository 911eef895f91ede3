"""The whole paper as a list of independent fits, and the report that is drawn from their results.

    plan -> run, on a pool or a cluster -> store -> report

Nothing here imports JAX before a fit or a report needs it.
"""
