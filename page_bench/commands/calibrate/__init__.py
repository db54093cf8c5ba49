"""`page-bench calibrate`: a pilot measured into a file."""
