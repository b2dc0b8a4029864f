"""Table features: the protocol that a table needs, its properties, and the rules of each feature."""
