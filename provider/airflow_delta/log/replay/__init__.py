"""Replaying the log: the live files of a version from its checkpoint and commits, filtered and counted."""
