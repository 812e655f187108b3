"""What a config must say before a federation begins, so that it does not fail in the middle."""

from itertools import islice

from fedfm.config import Config
from fedfm.core.errors import require, unknown
from fedfm.data import SOURCES
from fedfm.data.dataset import Dataset
from fedfm.data.holdout import validation_size
from fedfm.models import check_options
from fedfm.privacy.accounting import import_dp_accounting
from fedfm.rounds.federation import LocalTraining
from fedfm.rounds.single_samples import check_single_samples, find_single_samples
from fedfm.run.folder import differences
from fedfm.run.prepare import build_model

LOCAL = ("executor", "device", "client_states", "checkpoint_every", "threads", "data")
"""Keys of a config that are a machine's own business."""

TWO_CLIENTS = (
    "two clients in a round: each can take its own part off the sum and is left with the other's; "
    "secure sums hide clients from each other from three on"
)

MUCH_NOISE = (
    "every client adds noise as if only {0} took part (deployment.minimum): with {1} clients in a "
    "round, a larger minimum brings less noise for the same epsilon"
)


def check_deployable(config: Config) -> None:
    """Refuse a federation whose rounds cannot end, and a private one that would tell too much."""
    given, cohort = config.deployment, config.training.cohort
    check_options(config.model.name, config.model.options)
    if config.data.name not in SOURCES:
        raise unknown("data source", config.data.name, SOURCES)
    require(
        given.minimum <= cohort,
        f"deployment.minimum is {given.minimum}, but rounds have {cohort} clients (protocol)",
    )
    least = max(given.threshold, given.minimum)
    require(
        not (given.secure and given.threshold) or least <= cohort < 2 * least,
        f"deployment.threshold is {given.threshold}: it must be more than half of the {cohort} "
        "clients of a round, and no more than all; 0 takes two thirds",
    )
    if config.privacy is None:
        return
    require(
        given.evaluate == "server",
        "[privacy] keeps accuracies at the clients: set evaluate = 'server' in [deployment]",
    )
    require(
        bool(given.mean),
        "[privacy] keeps sums of inputs at the clients: give mean and std in [deployment], of "
        "public data or by convention; one number for each channel or column",
    )
    check_accountable(config)
    if guard := config.guard():
        guard.check(config.composed)


def check_enough(data: Dataset, config: Config) -> None:
    """Refuse data of which nothing would be left for training, or for validation."""
    samples, share = len(data.train), config.training.validation
    held = validation_size(samples, share)
    require(
        0 < held < samples,
        f"{samples} training samples are too few to take part: with {share:.0%} of them held out "
        f"(training.validation), {samples - held} are for training and {held} for validation",
    )


def check_batches(data: Dataset, config: Config) -> None:
    """Refuse data of which a batch of one sample would be left that the network cannot train on."""
    samples = len(data.train) - validation_size(len(data.train), config.training.validation)
    training = LocalTraining.from_config(config.training)
    if find_single_samples({"this client": samples}, training):
        network = build_model(config, data)
        check_single_samples(network, data.shape, {"this client": samples}, training)


def check_accountable(config: Config) -> None:
    """Refuse privacy where nobody could say what it comes to."""
    if config.privacy is not None:
        import_dp_accounting()


def warnings(config: Config) -> list[str]:
    """What is allowed, but hardly meant."""
    clients, minimum = config.training.cohort, config.deployment.minimum
    cases = {
        TWO_CLIENTS: config.deployment.secure and clients < 3,
        MUCH_NOISE.format(minimum, clients): config.privacy is not None and 2 * minimum < clients,
    }
    return [said for said, holds in cases.items() if holds]


def unlike(own: Config, other: Config, sides: tuple[str, str]) -> str:
    """In what two configs differ that must agree: not the machine, and not where data are."""
    mine, theirs = (
        {key: value for key, value in config.as_toml().items() if key not in LOCAL}
        for config in (own, other)
    )
    return "; ".join(islice(differences(mine, theirs, sides=sides), 5))
