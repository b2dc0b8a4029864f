"""Which files of the log make up a version."""
