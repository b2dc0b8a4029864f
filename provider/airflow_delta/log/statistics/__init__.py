"""Statistics of files, from footers to data skipping."""
