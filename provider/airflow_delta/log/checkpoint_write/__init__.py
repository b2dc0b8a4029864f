"""Writing checkpoints, classic and V2, from a snapshot."""
