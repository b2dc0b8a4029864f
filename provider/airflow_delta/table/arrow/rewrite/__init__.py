"""Rewriting rows without Spark: the same requests and reports, with the work on rows done by the worker."""
