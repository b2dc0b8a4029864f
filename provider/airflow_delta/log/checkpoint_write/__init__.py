"""Checkpoints as they are written."""
