"""Trees of tensors, keyed randomness, traffic counts and checkpoints."""
