"""The options of a commit, its outcome, and the events it sends."""
