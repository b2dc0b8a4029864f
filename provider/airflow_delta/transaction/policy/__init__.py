"""What a caller may choose of a commit, and the events that it sends."""
