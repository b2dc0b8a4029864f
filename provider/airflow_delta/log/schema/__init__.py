"""The types of a table's schema, what walks them, and values of partitions."""
