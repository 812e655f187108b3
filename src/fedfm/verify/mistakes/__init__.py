"""Methods with a mistake in them: what shows that the checks can fail."""

from fedfm.verify.mistakes import drift, engine, features, rounds, server
from fedfm.verify.mistakes.planting import MISTAKES, Mistake, plant

__all__ = ["MISTAKES", "Mistake", "drift", "engine", "features", "plant", "rounds", "server"]
