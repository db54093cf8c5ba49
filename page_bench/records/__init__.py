"""What runs leave behind, read and written."""
