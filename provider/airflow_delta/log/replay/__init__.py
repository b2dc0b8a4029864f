"""Live files of a version: checkpoint and commits, filtered and counted."""
