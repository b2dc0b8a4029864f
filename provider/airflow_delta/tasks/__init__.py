"""The parts that tasks are made of: identity, restarts, reports, lineage."""
