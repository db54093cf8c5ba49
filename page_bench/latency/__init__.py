"""Time and memory of full, plain and gated decoding: `page-bench latency`."""
