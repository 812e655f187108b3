"""Every method, one paper per file. To add one, add a file here and a line in `PIECES`."""

import re

from fedfm.core.errors import UserError, unknown_name_error
from fedfm.methods.balanced_softmax import BalancedSoftmax
from fedfm.methods.base import Batch, LocalRun, Model, Participation, Piece, Stage, Task
from fedfm.methods.ccvr import CCVR
from fedfm.methods.centralised import Centralised
from fedfm.methods.composition import Method, compose
from fedfm.methods.ditto import Ditto
from fedfm.methods.fedacg import FedACG
from fedfm.methods.fedavg import FedAvg
from fedfm.methods.fedavgm import FedAvgM
from fedfm.methods.fedbn import FedBN
from fedfm.methods.fedcm import FedCM
from fedfm.methods.feddecorr import FedDecorr
from fedfm.methods.feddyn import FedDyn
from fedfm.methods.fedfm import FedFM, FedFMLite
from fedfm.methods.fedlc import FedLC
from fedfm.methods.fednova import FedNova
from fedfm.methods.fedntd import FedNTD
from fedfm.methods.fedopt import FedAdagrad, FedAdam, FedYogi
from fedfm.methods.fedper import FedPer
from fedfm.methods.fedproto import FedProto
from fedfm.methods.fedprox import FedProx
from fedfm.methods.fedrep import FedRep
from fedfm.methods.fedrs import FedRS
from fedfm.methods.fedsam import FedSAM, MoFedSAM
from fedfm.methods.fedsmoo import FedSMOO
from fedfm.methods.fedspeed import FedSpeed
from fedfm.methods.feduv import FedUV
from fedfm.methods.local import Local
from fedfm.methods.moon import Moon
from fedfm.methods.scaffold import Scaffold

PIECES: dict[str, type[Piece]] = {
    piece.name: piece
    for piece in (
        FedAvg,
        FedAvgM,
        FedAdagrad,
        FedAdam,
        FedYogi,
        FedACG,
        FedProx,
        Scaffold,
        FedCM,
        FedDyn,
        FedNova,
        FedSAM,
        MoFedSAM,
        FedSpeed,
        FedSMOO,
        Moon,
        FedProto,
        FedFM,
        FedFMLite,
        FedNTD,
        FedLC,
        FedRS,
        BalancedSoftmax,
        FedDecorr,
        FedUV,
        CCVR,
        FedBN,
        FedPer,
        FedRep,
        Ditto,
        Local,
        Centralised,
    )
}
"""The registered pieces by name; add yours to use it by name."""


def piece_class(name: str) -> type[Piece]:
    """Return the registered piece of that name.

    Args:
        name: A name in `PIECES`.

    Returns:
        The class.

    Raises:
        UserError: If there is none; the message suggests the nearest name.

    Examples:
        >>> piece_class("fedprox")(mu=0.1)
        FedProx(mu=0.1)
    """
    if name not in PIECES:
        names = [part for part in re.split(r"[+,\s]+", name) if part]
        if len(names) > 1 and all(part in PIECES for part in names):
            raise UserError(f"'{name}' is not a method: to combine methods use method={names}")
        raise unknown_name_error("method", name, PIECES)
    return PIECES[name]


__all__ = [
    "CCVR",
    "PIECES",
    "BalancedSoftmax",
    "Batch",
    "Centralised",
    "Ditto",
    "FedACG",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedBN",
    "FedCM",
    "FedDecorr",
    "FedDyn",
    "FedFM",
    "FedFMLite",
    "FedLC",
    "FedNTD",
    "FedNova",
    "FedPer",
    "FedProto",
    "FedProx",
    "FedRS",
    "FedRep",
    "FedSAM",
    "FedSMOO",
    "FedSpeed",
    "FedUV",
    "FedYogi",
    "Local",
    "LocalRun",
    "Method",
    "MoFedSAM",
    "Model",
    "Moon",
    "Participation",
    "Piece",
    "Scaffold",
    "Stage",
    "Task",
    "compose",
    "piece_class",
]
