"""A pilot measured into a file: `page-bench calibrate`, and whether a file is a run's own."""
