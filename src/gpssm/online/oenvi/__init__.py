"""OEnVI: the paper's Algorithm 2, and what it has become."""
