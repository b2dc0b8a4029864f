"""Finding the files of the log that make up a version, and reading and writing commit files."""
