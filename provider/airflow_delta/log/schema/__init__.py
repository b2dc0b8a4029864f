"""Schemas: Spark's data types, traversing and changing nested fields, and partition values."""
