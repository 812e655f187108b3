"""Compare a method with FedAvg."""

from fedfm.methods import FedAvg, Piece
from fedfm.verify.checks import same_model
from fedfm.verify.fixtures import SmallFederation


def assert_fedavg(
    small: SmallFederation, piece: Piece, rounds: int = 3, tolerance: float = 0.0
) -> None:
    """The method's model after some rounds is FedAvg's."""
    ours, plain = small.play((piece,), rounds), small.play((FedAvg(),), rounds)
    same_model(ours.model, plain.model, tolerance)
