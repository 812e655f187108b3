"""Client sampling: which clients take part in a round."""

from collections.abc import Sequence

from fedfm.config.training import cohort_size
from fedfm.core.rng import generator


def draw_cohort(
    clients: Sequence[int], participation: float, population: int, seed: int, round: int
) -> list[int]:
    """Draw a round's cohort, a fraction of the population, from the available `clients`."""
    size = min(len(clients), cohort_size(participation, population))
    if size == len(clients):
        return sorted(clients)
    chosen = generator(seed, "cohort", round).choice(len(clients), size, replace=False)
    return sorted(clients[place] for place in chosen.tolist())


def toss_coins(clients: Sequence[int], participation: float, seed: int, round: int) -> list[int]:
    """Draw a round's cohort by a coin for each client; at least one client takes part."""
    chances = generator(seed, "coins", round).random(len(clients))
    chosen = (chances < participation).nonzero()[0].tolist()
    return [clients[place] for place in chosen or [int(chances.argmin())]]
