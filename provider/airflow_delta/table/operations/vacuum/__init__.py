"""VACUUM."""
