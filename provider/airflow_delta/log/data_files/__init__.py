"""Data files: their footers, columns and rows."""
