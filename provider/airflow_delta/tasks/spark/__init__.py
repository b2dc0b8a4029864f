"""Spark work of a task: sessions, submissions, their storage and their ends."""
