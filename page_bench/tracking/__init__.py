"""Weights & Biases: what a run of `page_hf` logs there, live or afterwards."""
