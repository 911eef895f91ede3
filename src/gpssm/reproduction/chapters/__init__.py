"""One file for every experiment of the paper: its fits, and what the report tells of them."""
