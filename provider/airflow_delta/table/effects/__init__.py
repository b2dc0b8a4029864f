"""What a commit does, or would do, to the rows of a table: added, removed and changed rows, as a diff, a review or a stream."""
