"""Reading checkpoints, classic and V2: parts, manifests, sidecars, and the columns in them."""
