"""Spark work of a stage by a job of the author's choice: a task before it plans, a task after it collects."""
