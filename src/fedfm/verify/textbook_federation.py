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
from fedfm.verify.checks import registered_name
from fedfm.verify.fixtures import Pieces, SmallFederation
from fedfm.verify.textbook import (
    drift,
    features,
    fedsa,
    loop,
    losses,
    parts,
    personal,
    server_optimizers,
    sharpness,
)

METHODS: dict[str, type[loop.FedAvg]] = {
    "fedavg": loop.FedAvg,
    "fedavgm": server_optimizers.FedAvgM,
    "fedprox": drift.FedProx,
    "scaffold": drift.Scaffold,
    "feddyn": drift.FedDyn,
    "fednova": drift.FedNova,
    "fedadagrad": server_optimizers.FedAdagrad,
    "fedadam": server_optimizers.FedAdam,
    "fedyogi": server_optimizers.FedYogi,
    "fedacg": server_optimizers.FedACG,
    "fedcm": server_optimizers.FedCM,
    "fedsam": sharpness.FedSAM,
    "mofedsam": sharpness.MoFedSAM,
    "fedspeed": sharpness.FedSpeed,
    "fedsmoo": sharpness.FedSMOO,
    "moon": features.Moon,
    "fedproto": features.FedProto,
    "fedntd": losses.FedNTD,
    "fedlc": losses.FedLC,
    "fedrs": losses.FedRS,
    "balancedsoftmax": losses.BalancedSoftmax,
    "feddecorr": losses.FedDecorr,
    "feduv": losses.FedUV,
    "ccvr": loop.FedAvg,
    "fedbn": personal.FedBN,
    "fedper": personal.FedPer,
    "fedrep": personal.FedRep,
    "ditto": personal.Ditto,
    "local": personal.Local,
    "centralised": personal.Centralised,
}
"""The textbook's class of a method."""
SERVER = {"server_lr": "lr", "server_momentum": "momentum"}
"""Fields of the textbook whose name, in a piece, is that of local training here."""


class TextbookFederation(Protocol):
    """The textbook's federation: `round` replaces `model`."""

    @property
    def model(self) -> nn.Module:
        """The global model."""
        ...

    def round(self, cohort: Sequence[parts.Client]) -> None:
        """Play one round."""


def make_textbook_federation(pieces: Pieces, small: SmallFederation) -> TextbookFederation:
    """Return the textbook's version of pieces of which the last may be FedFM or FedFM-Lite."""
    *others, last = pieces
    small = replace(small, lr=small.lr * small.lr_gamma ** choose_compared_rounds(pieces).begin)
    if last.name not in ("fedfm", "fedfm-lite"):
        return make_method(pieces, small)
    settings = {
        "method": make_method(tuple(others) or (FedAvg(),), small),
        "wait": choose_compared_rounds(pieces).wait,
        "aggregation": vars(last)["anchors"],
        **copy_settings(last, fedsa.FedSA),
    }
    if last.name == "fedfm":
        return fedsa.FedSA(**settings)
    return fedsa.FedSALite(**settings, every=choose_compared_rounds(pieces).every)


def make_method(pieces: Pieces, small: SmallFederation) -> loop.FedAvg:
    """Return the textbook's method for a piece, or for FedNova with FedProx."""
    first, *more = pieces
    kind = METHODS[first.name]
    settings = copy_settings(first, kind)
    for prox in more:
        settings |= copy_settings(prox, kind)
    if first.name == "fedproto":
        settings["wait"] = choose_compared_rounds(pieces).wait
    for name in ("lr_gamma", "clip_norm", "clip_first"):
        settings[name] = getattr(small, name)
    sgd = small.lr, small.momentum, small.weight_decay
    return kind(small.module, len(small.sizes), *sgd, **settings)


def copy_settings(piece: Piece, kind: Any) -> dict[str, Any]:
    """Return the hyper-parameters of a piece that the textbook's class has, too."""
    names = {field.name for field in fields(kind) if field.init}
    names -= {field.name for field in fields(loop.FedAvg)}
    settings = {name: SERVER.get(name, name) for name in sorted(names)}
    return {ours: vars(piece)[theirs] for ours, theirs in settings.items() if theirs in vars(piece)}


def has_textbook(pieces: Pieces) -> bool:
    """Return whether the textbook has this method."""
    name = registered_name(pieces)
    uniform = name == "fedproto" and vars(pieces[0])["anchors"] == "uniform"
    return (name in METHODS or name in ("fedfm", "fedfm-lite")) and not uniform


class ComparedRounds(NamedTuple):
    """The rounds in which a method is compared with the textbook.

    They depend on the settings alone, since the `first_round` of a piece may be wrong.
    """

    begin: int
    wait: int
    """The rounds from `begin` to T_s, two if there are so many."""
    every: int
    """Models travel every so many rounds."""
    rounds: int


def choose_compared_rounds(pieces: Pieces, least: int = 4) -> ComparedRounds:
    """Return rounds around T_s, at least `least` after it, in whole cycles of model exchanges."""
    start = max(int(vars(piece).get("start_round", 0)) for piece in pieces)
    every = max(int(vars(piece).get("models_every", 1)) for piece in pieces)
    begin = max(0, start - 2) // every * every
    return ComparedRounds(begin, start - begin, every, -(-(start - begin + least) // every) * every)


def cohort_of(fed: Federation, data: Dataset, round: int) -> list[parts.Client]:
    """Return the cohort of a round in the textbook's form, with batches that the textbook makes."""
    return [_client(fed, data, round, k) for k in fed.cohort(round)]


def _client(fed: Federation, data: Dataset, round: int, client: int) -> parts.Client:
    def pair(indices: Any) -> tuple[Tensor, Tensor]:
        chosen = data.train.subset(torch.as_tensor(indices))
        return chosen.inputs, chosen.labels

    samples, training = fed.samples[client].tolist(), fed.training
    rng = generator(fed.seed, "batches", round, client)
    how = training.batch_size, training.keep_last
    first = max(int(vars(piece).get("head_epochs", 0)) for piece in fed.method.pieces)
    head_batches, batches = (
        parts.local_batches(samples, lambda order: rng.permutation([*order]), epochs, *how)
        for epochs in (first, training.epochs)
    )
    return {
        "id": client,
        "head_batches": [pair(batch) for batch in head_batches],
        "batches": [pair(batch) for batch in batches],
        "samples": len(samples),
        "data": pair(samples),
    }
