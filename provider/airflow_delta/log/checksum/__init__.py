"""Version checksum files: their content, their totals and their histograms."""
