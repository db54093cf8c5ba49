"""`page-bench wandb-import`: finished runs logged to Weights & Biases."""
