"""The round: who asks whom for what, its two sides, and the state that it makes of another."""
