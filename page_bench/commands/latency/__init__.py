"""`page-bench latency`: time and memory of full, plain and gated decoding."""
