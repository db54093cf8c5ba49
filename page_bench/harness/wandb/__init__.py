"""What is logged to Weights & Biases while a run goes on."""
