"""The run store: what was computed, kept for other runs."""
