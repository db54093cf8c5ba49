"""The run store: what was computed is not computed again."""
