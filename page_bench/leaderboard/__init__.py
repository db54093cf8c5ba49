"""The table of results: its rows, their checks, its page, and the comparison with the paper."""
