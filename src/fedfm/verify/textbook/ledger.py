"""Textbook communication costs: what a round sends, counted from the method's description.

Like its sister files it uses nothing of the library, neither its messages nor its ledger. Floats
are the paper's (trainable parameters, anchors, control variates), bytes are all that is sent.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from fedfm.verify.textbook.personal import all_names, batch_norm_names, head_names

CONTROLS = {"scaffold": 1, "fedcm": 1, "mofedsam": 1, "fedsmoo": 1}
"""Vectors as large as the model that travel beside it, both ways."""
NUMBERS = {"fednova": 1}
"""Single numbers that go up: the local work a_i."""
HELD = {
    "fedprox": 1,
    "scaffold": 1,
    "feddyn": 1,
    "fedacg": 1,
    "fedcm": 1,
    "fedsam": 1,
    "mofedsam": 2,
    "fedspeed": 2,
    "fedsmoo": 5,
    "moon": 2,
    "ditto": 2,
    "fedntd": 1,
}
"""Vectors as large as the model that a client holds beside its own while it trains.

A second pass needs w + e. FedSMOO has that, FedDyn's constant, s, mu_i, and the last e.
"""
PER_CLASS = {"fedlc": 1, "fedrs": 1, "balancedsoftmax": 1}
"""Numbers per class that a client holds while it trains, made of its own class counts."""
PERSONAL: dict[str, Callable[[nn.Module], list[str]]] = {
    "fedbn": batch_norm_names,
    "fedper": head_names,
    "fedrep": head_names,
    "local": all_names,
}
"""The names of the parameters and buffers that stay at clients."""
FLAG, COUNT = 1, 8
"""Bytes of "this class has an anchor", and of a count."""


@dataclass
class ExpectedTraffic:
    """What the clients of a round send and receive in all; ``held``: floats of one in training."""

    floats_up: int
    floats_down: int
    bytes_up: int
    bytes_down: int
    handshakes: int
    held: int


def count_round(
    model: nn.Module,
    classes: int,
    features: int,
    method: str,
    settings: dict[str, Any],
    t: int,
    cohort: int,
    newcomers: int,
    first: int,
) -> ExpectedTraffic:
    """Costs of round t (from 0) of a method with ``cohort`` clients.

    Models go down to ``newcomers``, who have none of their own since the last exchange, and up at
    the end of every ``models_every`` rounds. What stays at clients goes down to those alone who
    take part for the ``first`` time. Training in one place sends nothing. Anchors go both ways
    from round T_s on, for which FedFM and FedProto need a second handshake; FedFM-Lite sends them
    from the round before T_s, empty ones down at first. For a warm-up the number of the rounds
    goes down with them, of which a client makes a factor. To calibrate its head, a client holds the
    anchors raw, too, besides those at unit length.
    """
    parameters = sum(parameter.numel() for parameter in model.parameters())
    size = next(model.parameters()).element_size()
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
    if method == "centralised":
        return ExpectedTraffic(0, 0, 0, 0, 0, held=parameters)
    stays = PERSONAL[method](model) if method in PERSONAL else []
    own_floats = sum(p.numel() for name, p in model.named_parameters() if name in stays)
    own_bytes = sum(b.numel() * b.element_size() for n, b in model.named_buffers() if n in stays)
    lite, start = method == "fedfm-lite", settings.get("start_round")
    matched = start is not None and t >= (start - 1 if lite else start)
    anchors = classes * features if matched else 0
    sharing = (t + 1) % settings.get("models_every", 1) == 0
    uploads = cohort if sharing else 0
    beside = cohort * (parameters * CONTROLS.get(method, 0) + anchors)
    floats_up = uploads * (parameters - own_floats) + beside + cohort * NUMBERS.get(method, 0)
    floats_down = newcomers * (parameters - own_floats) + first * own_floats + beside
    count = COUNT if settings.get("anchors") == "weighted" else FLAG
    entries = cohort * classes if matched else 0
    factors = 1 if matched and settings.get("warm_up") else 0
    of_classes = classes * PER_CLASS.get(method, 0)
    raw = anchors if settings.get("calibration") else 0
    return ExpectedTraffic(
        floats_up,
        floats_down,
        size * floats_up + uploads * (buffers - own_bytes) + entries * count,
        size * floats_down
        + newcomers * (buffers - own_bytes)
        + first * own_bytes
        + entries * FLAG
        + cohort * factors * COUNT,
        handshakes=2 if matched and not lite else 1,
        held=parameters * (1 + HELD.get(method, 0)) + of_classes + anchors + raw + factors,
    )


def count_conclusion(
    model: nn.Module, classes: int, features: int, clients: int
) -> ExpectedTraffic:
    """Costs of CCVR's last round: the model down to all, n, sum z, sum z z^T of each class up.

    Nothing is trained, and so nothing held in training.
    """
    parameters = sum(parameter.numel() for parameter in model.parameters())
    size = next(model.parameters()).element_size()
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
    up = classes * features + classes * features * features
    return ExpectedTraffic(
        clients * up,
        clients * parameters,
        clients * (size * up + COUNT * classes),
        clients * (size * parameters + buffers),
        handshakes=1,
        held=0,
    )
