"""The decision, input by input: gates, thresholds, and what decides in a run."""
