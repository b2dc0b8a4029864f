"""The checksum of a version: totals and histograms."""
