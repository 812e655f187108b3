"""The hyper-parameters with which registered methods are checked; others run with defaults."""

from fedfm.algorithms import (
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

SETTINGS: dict[str, list[Piece]] = {
    "fedavgm": [FedAvgM(beta=0.7)],
    "fedprox": [FedProx(mu=0.3)],
    "feddyn": [FedDyn(alpha=0.2)],
    "moon": [Moon(mu=2.0)],
    "fedproto": [FedProto(strength=0.5)],
    "fedfm": [
        FedFM(strength=1.0, start_round=2),
        FedFM(strength=1.0, start_round=0, guide="l2", anchors="uniform"),
    ],
    "fedfm-lite": [
        FedFMLite(strength=1.0, start_round=2),
        FedFMLite(strength=1.0, start_round=0, anchors="uniform", models_every=2),
    ],
}


def settings_of(name: str) -> list[Piece]:
    """A registered method as it is checked, in one or more settings."""
    return SETTINGS.get(name) or [PIECES[name]()]
