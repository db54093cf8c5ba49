"""Tensors: attention, prefill, cache, keep plan, decode."""
