"""One module a question: its numbers, its table and its figure."""
