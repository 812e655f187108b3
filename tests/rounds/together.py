"""Rounds of several federations at once."""

from collections.abc import Sequence

from fedfm.rounds.federation import Federation
from fedfm.rounds.round import RoundLog, run_rounds
from fedfm.rounds.server import Diverged
from fedfm.rounds.state import State


def run_without_divergence(
    states: Sequence[State], feds: Sequence[Federation]
) -> list[tuple[State, RoundLog]]:
    """Return what `run_rounds` does, of federations none of which diverges."""
    outcomes = run_rounds(states, feds)
    ended = [outcome for outcome in outcomes if not isinstance(outcome, Diverged)]
    assert len(ended) == len(outcomes)
    return ended
