"""Checkpoints: their epochs, what Spark has written into them, who owns a result, and how an epoch ends."""
