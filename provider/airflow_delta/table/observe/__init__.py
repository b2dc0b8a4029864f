"""Reading what a table and its commits are, and running its maintenance."""
