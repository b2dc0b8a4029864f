"""Spark SQL expressions: parsing predicates, evaluating them, and checking which functions an expression may call."""
