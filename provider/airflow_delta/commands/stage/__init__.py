"""What stages have left: loaded, checked, one on top of another, compared."""
