"""Predicates and generation expressions: their text, tree and values."""
