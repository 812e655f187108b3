"""Methods: pieces composed."""

from collections.abc import Iterable
from dataclasses import dataclass

from fedfm.core.errors import require
from fedfm.methods.base import Piece, Stage, Task
from fedfm.methods.contract import check_piece, check_piece_name, overrides

SINGLE = {
    "start": "set where clients start",
    "perturb": "perturb the model",
    "blend": "blend the gradients of two passes",
}
"""Hooks that only one piece of a method may have, and what they do."""


@dataclass(frozen=True)
class Method:
    """Pieces composed into one method.

    Examples:
        >>> from fedfm import FedFMLite, compose
        >>> method = compose(FedFMLite(models_every=5, start_round=1))
        >>> method.name, method.share_every
        ('fedfm-lite', 5)
    """

    pieces: tuple[Piece, ...]
    """The pieces, in the order in which their hooks are called."""

    @property
    def name(self) -> str:
        """The pieces' names joined by '+'."""
        return "+".join(piece.name for piece in self.pieces)

    @property
    def share_every(self) -> int:
        """Models are exchanged every so many rounds."""
        return max(piece.share_every for piece in self.pieces)

    @property
    def steady_round(self) -> int:
        """The first round (from 0) with every piece active, at the start of a sharing cycle."""
        first = max(piece.first_round for piece in self.pieces)
        return -(-first // self.share_every) * self.share_every

    @property
    def pull(self) -> float:
        """Mu of all proximal terms together."""
        return sum(piece.pull for piece in self.pieces)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of local training."""
        several = [piece.stages for piece in self.pieces if piece.stages != (Stage(),)]
        return several[0] if several else (Stage(),)

    def concludes(self, round: int, rounds: int | None) -> bool:
        """Return whether a round (from 0) of so many is the last and trains nothing.

        Pieces that measure at the "end" edit the model in it instead.
        """
        return round + 1 == rounds and any(piece.measures == "end" for piece in self.pieces)

    @property
    def keeps_models(self) -> bool:
        """Whether clients have models of their own: a part of the model, or a second one."""
        return any(map(has_own_part, self.pieces)) or any(stage.second for stage in self.stages)

    @property
    def moves_start(self) -> bool:
        """Whether clients receive and start from other parameters than the server's."""
        return any(overrides(piece, "start") for piece in self.pieces)

    @property
    def pools_data(self) -> bool:
        """Whether one client trains on the samples of all."""
        return any(piece.pools_data for piece in self.pieces)

    def check(self, task: Task) -> None:
        """Refuse a network or data that a piece cannot work with."""
        for piece in self.pieces:
            piece.check(task)

    def personal(self, task: Task) -> frozenset[str]:
        """Return the names of the parameters and buffers that stay at the clients."""
        return frozenset().union(*(piece.personal(task) for piece in self.pieces))

    def sent_once(self, task: Task) -> frozenset[str]:
        """Return the names of what a client gets with its first model only, and never sends.

        These are frozen parameters, and what each client keeps of its own. The server's values of
        both never change.
        """
        return task.frozen | self.personal(task)

    def active(self, round: int) -> list[Piece]:
        """Return the pieces that take part in a round (from 0)."""
        return [piece for piece in self.pieces if round >= piece.first_round]


def compose(pieces: Piece | Iterable[Piece]) -> Method:
    """Compose pieces into a method.

    Args:
        pieces: One piece, or several, whose hooks are called in this order.

    Returns:
        The method.

    Raises:
        UserError: If two pieces claim the same role, or need different exchanges of models.

    Examples:
        >>> from fedfm import FedFM, compose
        >>> from fedfm.methods import FedProx
        >>> compose([FedProx(mu=0.01), FedFM()]).name
        'fedprox+fedfm'
    """
    chosen = (pieces,) if isinstance(pieces, Piece) else tuple(pieces)
    require(len(chosen) > 0, "a method needs at least one piece, e.g. fedavg")
    claimed: dict[str, str] = {}
    for piece in chosen:
        check_piece(type(piece))
        check_piece_name(piece)
        for claim in (*sorted(piece.claims), f"name {piece.name}"):
            require(
                claim not in claimed,
                f"{claimed.get(claim)} and {piece.name} cannot be combined: both set the {claim}",
            )
            claimed[claim] = piece.name
    method = Method(chosen)
    for hook, what in SINGLE.items():
        having = [piece.name for piece in chosen if overrides(piece, hook)]
        require(len(having) < 2, f"{' and '.join(having[:2])} cannot be combined: both {what}")
    once = [piece.name for piece in chosen if piece.single_pass]
    twice = [piece.name for piece in chosen if overrides(piece, "perturb")]
    require(
        not (once and twice),
        f"{''.join(once[:1])} and {''.join(twice)} cannot be combined: {''.join(twice)} passes "
        "every batch through the network twice, which the other does not allow",
    )
    for piece in chosen:
        keeps = overrides(piece, "client_state") or method.keeps_models or method.moves_start
        require(
            method.share_every == 1 or not (piece.shares_every_round or keeps),
            f"{piece.name} needs models to be exchanged in every round, but this method exchanges "
            f"them every {method.share_every} rounds",
        )
        partial = [other.name for other in chosen if has_own_part(other)]
        require(
            not (piece.needs_whole_model and partial),
            f"{piece.name} and {''.join(partial[:1])} cannot be combined: {piece.name} corrects "
            "the whole model, of which the other keeps a part at the clients",
        )
    return method


def has_own_part(piece: Piece) -> bool:
    """Return whether a part of the model stays at the clients."""
    return overrides(piece, "personal")


def uses_counts(piece: Piece) -> bool:
    """Return whether a piece needs the class counts of clients."""
    return overrides(piece, "use_counts")
