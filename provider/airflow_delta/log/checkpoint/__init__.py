"""Checkpoints as they are read: parts, sidecars, manifests, columns."""
