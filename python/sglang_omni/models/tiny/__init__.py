"""What the makers of random checkpoints share."""
