"""Lineage of tables as OpenLineage has it. Only ``facets`` imports OpenLineage, and only a task that is asked imports that."""
