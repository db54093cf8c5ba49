"""`page-bench doctor`: whether page-bench gives right numbers with this model, here and now."""
