"""Data files as actions: footers, statistics, partition values, rules."""
