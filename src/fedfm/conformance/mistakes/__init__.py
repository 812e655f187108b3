"""Methods with a mistake in them: what shows that the checks can fail."""

from fedfm.conformance.mistakes import drift, engine, features, rounds, server
from fedfm.conformance.mistakes.planting import MISTAKES, Mistake, plant

__all__ = ["MISTAKES", "Mistake", "drift", "engine", "features", "plant", "rounds", "server"]
