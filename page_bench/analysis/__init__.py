"""Finished runs read back: re-gating, sweeps over τ, ablations."""
