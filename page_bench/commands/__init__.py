"""What can be run: one module or folder for each subcommand of `page-bench`."""
