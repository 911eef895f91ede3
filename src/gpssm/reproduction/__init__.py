"""The whole paper as a list of independent fits, and the report that is drawn from their results.

    plan -> pool or cluster (work) -> store -> report

Nothing here imports JAX before a fit or a report needs it.
"""
