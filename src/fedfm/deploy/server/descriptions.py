"""A run's steps as events."""

import hashlib
from pathlib import Path

from fedfm import __version__
from fedfm.config import Config
from fedfm.core.checkpoint import to_bytes
from fedfm.deploy.events import RoundEnded, Scored, Started
from fedfm.deploy.packets import PROTOCOL_VERSION
from fedfm.methods.base import Model
from fedfm.privacy.privacy_mechanism import PrivacyMechanism
from fedfm.rounds.round import RoundLog
from fedfm.rounds.state import State
from fedfm.run.records import RoundRecord


def describe_start(config: Config, folder: Path) -> Started:
    """Return the event of a start; the run's folder has its config."""
    return Started(
        config=hashlib.sha256((folder / "config.toml").read_bytes()).hexdigest(),
        method=config.composed.name,
        rounds=config.training.rounds,
        clients=config.training.clients,
        secure=config.deployment.secure,
        version=__version__,
        protocol=PROTOCOL_VERSION,
    )


def describe_round(
    config: Config, privacy: PrivacyMechanism | None, state: State, log: RoundLog, seconds: float
) -> RoundEnded:
    """Return the event of a round's end, given the state after it."""
    traffic, secure = log.traffic, config.deployment.secure
    spent = privacy.spent(config.composed, state.round, secure) if privacy else []
    return RoundEnded(
        round=state.round,
        model=digest_model(state.model),
        clients=list(log.cohort),
        left_out=list(log.failed),
        seconds=seconds,
        bytes_up=traffic.bytes_up,
        bytes_down=traffic.bytes_down,
        handshakes=traffic.handshakes,
        epsilon=spent[0].value if spent else None,
        epsilon_server=spent[1].value if len(spent) > 1 else None,
        delta=spent[0].delta if spent else None,
    )


def describe_score(record: RoundRecord) -> Scored:
    """Return the event of a round's evaluation: accuracies, losses and further metrics."""
    names = ("round", "seconds", "failed", "handshakes")
    counts = tuple(name for name in record.numbers if name.startswith(("floats", "bytes")))
    kept = {k: v for k, v in record.numbers.items() if k not in names + counts}
    return Scored(record.round, kept)


def digest_model(model: Model) -> str:
    """Return the SHA-256 of the file model.safetensors that this model would be written to."""
    return hashlib.sha256(to_bytes({**model.params, **model.buffers})).hexdigest()
