"""What is wrong, or likely to be meant otherwise, in a Dag file: rules that need nothing but its tasks."""
