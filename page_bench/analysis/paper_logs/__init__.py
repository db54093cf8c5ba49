"""The logs that the paper's authors released."""
