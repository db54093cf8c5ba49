"""The decision, input by input: gates and thresholds."""
