"""lm-eval's door. Imports nothing: the `.pth` file imports it at every start of Python."""
