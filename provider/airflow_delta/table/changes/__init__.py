"""The change data feed."""
