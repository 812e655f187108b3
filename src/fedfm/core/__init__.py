"""State, rounds, costs, randomness and checkpoints: what every method and executor stands on."""
