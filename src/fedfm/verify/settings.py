"""The hyper-parameters with which registered methods are checked; others run with defaults."""

from fedfm.methods import (
    PIECES,
    FedAvgM,
    FedDyn,
    FedFM,
    FedFMLite,
    FedProto,
    FedProx,
    Moon,
    Piece,
)

SETTINGS: dict[str, dict[str, Piece]] = {
    "fedavgm": {"": FedAvgM(beta=0.7)},
    "fedprox": {"": FedProx(mu=0.3)},
    "feddyn": {"": FedDyn(alpha=0.2)},
    "moon": {"": Moon(mu=2.0)},
    "fedproto": {"": FedProto(strength=0.5)},
    "fedfm": {
        "": FedFM(strength=1.0, start_round=2),
        ", L2, uniform": FedFM(strength=1.0, start_round=0, guide="l2", anchors="uniform"),
    },
    "fedfm-lite": {
        "": FedFMLite(strength=1.0, start_round=2),
        ", a=2, uniform": FedFMLite(strength=1.0, start_round=0, anchors="uniform", models_every=2),
    },
}
"""By method: what to add to its name, and the piece."""


def settings_of(name: str) -> dict[str, Piece]:
    """A registered method as it is checked, in one or more settings, by what they are called."""
    chosen = SETTINGS.get(name) or {"": PIECES[name]()}
    return {name + label: piece for label, piece in chosen.items()}
