"""What users hand over: options, paths, text and JSON."""
