"""Append and overwrite: planned for Spark, collected from its files."""
