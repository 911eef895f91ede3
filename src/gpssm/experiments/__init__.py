"""The experiments of the paper, one file per table or figure."""
