"""What a transaction key is: the default one, the mapped value in it, its templates, its age, and who uses it."""
