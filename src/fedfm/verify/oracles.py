"""The textbook's side of a federation: its loop for a method, its rounds, its clients."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from fedfm.core.rng import generator
from fedfm.data.dataset import Dataset
from fedfm.methods import FedAvg, Piece
from fedfm.rounds.federation import Federation
from fedfm.verify import (
    textbook,
    textbook_fedsa,
    textbook_losses,
    textbook_methods,
    textbook_personal,
    textbook_server_optimizers,
    textbook_sharpness,
)
from fedfm.verify.checks import registered_name
from fedfm.verify.worlds import Pieces, World

METHODS: dict[str, type[textbook_methods.FedAvg]] = {
    "fedavg": textbook_methods.FedAvg,
    "fedavgm": textbook_methods.FedAvgM,
    "fedprox": textbook_methods.FedProx,
    "scaffold": textbook_methods.Scaffold,
    "feddyn": textbook_methods.FedDyn,
    "fednova": textbook_methods.FedNova,
    "fedadagrad": textbook_server_optimizers.FedAdagrad,
    "fedadam": textbook_server_optimizers.FedAdam,
    "fedyogi": textbook_server_optimizers.FedYogi,
    "fedacg": textbook_server_optimizers.FedACG,
    "fedcm": textbook_server_optimizers.FedCM,
    "fedsam": textbook_sharpness.FedSAM,
    "mofedsam": textbook_sharpness.MoFedSAM,
    "fedspeed": textbook_sharpness.FedSpeed,
    "fedsmoo": textbook_sharpness.FedSMOO,
    "moon": textbook_methods.Moon,
    "fedproto": textbook_methods.FedProto,
    "fedntd": textbook_losses.FedNTD,
    "fedlc": textbook_losses.FedLC,
    "fedrs": textbook_losses.FedRS,
    "balancedsoftmax": textbook_losses.BalancedSoftmax,
    "feddecorr": textbook_losses.FedDecorr,
    "feduv": textbook_losses.FedUV,
    "ccvr": textbook_methods.FedAvg,
    "fedbn": textbook_personal.FedBN,
    "fedper": textbook_personal.FedPer,
    "fedrep": textbook_personal.FedRep,
    "ditto": textbook_personal.Ditto,
    "local": textbook_personal.Local,
    "centralised": textbook_personal.Centralised,
}
"""The textbook's class of a method."""
SERVER = {"server_lr": "lr", "server_momentum": "momentum"}
"""Fields of the textbook whose name, in a piece, is that of local training here."""


class Oracle(Protocol):
    """The textbook's federation: `round` replaces `model`."""

    @property
    def model(self) -> nn.Module:
        """The global model."""
        ...

    def round(self, cohort: Sequence[textbook.Client]) -> None:
        """Play one round."""


def make_oracle(pieces: Pieces, world: World) -> Oracle:
    """Return the textbook's version of pieces of which the last may be FedFM or FedFM-Lite."""
    *others, last = pieces
    world = replace(world, lr=world.lr * world.lr_gamma ** schedule(pieces).begin)
    if last.name not in ("fedfm", "fedfm-lite"):
        return make_method(pieces, world)
    settings = {
        "method": make_method(tuple(others) or (FedAvg(),), world),
        "wait": schedule(pieces).wait,
        "aggregation": vars(last)["anchors"],
        **copy_settings(last, textbook_fedsa.FedSA),
    }
    if last.name == "fedfm":
        return textbook_fedsa.FedSA(**settings)
    return textbook_fedsa.FedSALite(**settings, every=schedule(pieces).every)


def make_method(pieces: Pieces, world: World) -> textbook_methods.FedAvg:
    """Return the textbook's method for a piece, or for FedNova with FedProx."""
    first, *more = pieces
    kind = METHODS[first.name]
    settings = copy_settings(first, kind)
    for prox in more:
        settings |= copy_settings(prox, kind)
    if first.name == "fedproto":
        settings["wait"] = schedule(pieces).wait
    for name in ("lr_gamma", "clip_norm", "clip_first"):
        settings[name] = getattr(world, name)
    sgd = world.lr, world.momentum, world.weight_decay
    return kind(world.module, len(world.sizes), *sgd, **settings)


def copy_settings(piece: Piece, kind: Any) -> dict[str, Any]:
    """Return the hyper-parameters of a piece that the textbook's class has, too."""
    names = {field.name for field in fields(kind) if field.init}
    names -= {field.name for field in fields(textbook_methods.FedAvg)}
    settings = {name: SERVER.get(name, name) for name in sorted(names)}
    return {ours: vars(piece)[theirs] for ours, theirs in settings.items() if theirs in vars(piece)}


def has_oracle(pieces: Pieces) -> bool:
    """Return whether the textbook has this method."""
    name = registered_name(pieces)
    uniform = name == "fedproto" and vars(pieces[0])["anchors"] == "uniform"
    return (name in METHODS or name in ("fedfm", "fedfm-lite")) and not uniform


class Schedule(NamedTuple):
    """The rounds in which a method is compared with the textbook.

    They depend on the settings alone, since the `first_round` of a piece may be wrong.
    """

    begin: int
    wait: int
    """The rounds from `begin` to T_s, two if there are so many."""
    every: int
    """Models travel every so many rounds."""
    rounds: int


def schedule(pieces: Pieces, least: int = 4) -> Schedule:
    """Return rounds around T_s, at least `least` after it, in whole cycles of model exchanges."""
    start = max(int(vars(piece).get("start_round", 0)) for piece in pieces)
    every = max(int(vars(piece).get("models_every", 1)) for piece in pieces)
    begin = max(0, start - 2) // every * every
    return Schedule(begin, start - begin, every, -(-(start - begin + least) // every) * every)


def cohort_of(fed: Federation, data: Dataset, round: int) -> list[textbook.Client]:
    """Return the cohort of a round in the textbook's form, with batches that the textbook makes."""
    return [_client(fed, data, round, k) for k in fed.cohort(round)]


def _client(fed: Federation, data: Dataset, round: int, client: int) -> textbook.Client:
    def pair(indices: Any) -> tuple[Tensor, Tensor]:
        chosen = data.train.subset(torch.as_tensor(indices))
        return chosen.inputs, chosen.labels

    samples, training = fed.samples[client].tolist(), fed.training
    rng = generator(fed.seed, "batches", round, client)
    how = training.batch_size, training.keep_last
    first = max(int(vars(piece).get("head_epochs", 0)) for piece in fed.method.pieces)
    head_batches, batches = (
        textbook.local_batches(samples, lambda order: rng.permutation([*order]), epochs, *how)
        for epochs in (first, training.epochs)
    )
    return {
        "id": client,
        "head_batches": [pair(batch) for batch in head_batches],
        "batches": [pair(batch) for batch in batches],
        "samples": len(samples),
        "data": pair(samples),
    }
