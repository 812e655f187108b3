"""Compare a method with FedAvg."""

from fedfm.methods import FedAvg, Piece
from fedfm.verify.checks import same_model
from fedfm.verify.worlds import World


def assert_fedavg(world: World, piece: Piece, rounds: int = 3, tolerance: float = 0.0) -> None:
    """The method's model after some rounds is FedAvg's."""
    ours, plain = world.play((piece,), rounds), world.play((FedAvg(),), rounds)
    same_model(ours.model, plain.model, tolerance)
