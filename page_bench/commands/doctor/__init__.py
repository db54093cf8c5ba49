"""`page-bench doctor`: a model checked against references."""
