"""Tasks for lm-eval: YAML files, the code that makes their prompts, and their scorers."""
