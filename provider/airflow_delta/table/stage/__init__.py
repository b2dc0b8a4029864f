"""What stages work on and what they leave: loaded, checked, built on each other, compared."""
