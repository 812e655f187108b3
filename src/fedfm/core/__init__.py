"""Trees, randomness, costs and checkpoints: what every method and executor stands on."""
