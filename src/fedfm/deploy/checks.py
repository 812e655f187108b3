"""Check a config and data before a federation begins, so that it does not fail later."""

from itertools import islice
from pathlib import Path

from fedfm.config import Config
from fedfm.core.errors import require, unknown_name_error
from fedfm.data import SOURCES
from fedfm.data.dataset import Dataset
from fedfm.data.holdout import validation_size
from fedfm.data.text import read_words
from fedfm.methods.composition import has_own_part
from fedfm.models import check_options, needs_vocabulary
from fedfm.privacy.accounting import import_dp_accounting
from fedfm.rounds.federation import LocalTraining
from fedfm.rounds.single_samples import check_single_samples, find_single_samples
from fedfm.run.folder import list_differences
from fedfm.run.prepare import build_model

LOCAL = ("executor", "device", "client_states", "checkpoint_every", "threads", "data")
"""Keys of a config that may differ between machines."""

TWO_CLIENTS = (
    "two clients in a round: each can subtract its own part from the sum and see the other's; "
    "secure sums hide clients from each other only if there are three or more"
)

MUCH_NOISE = (
    "every client adds noise as if only {0} took part (deployment.minimum): with {1} clients in a "
    "round, a larger minimum gives the same epsilon with less noise"
)


def check_deployable(config: Config) -> None:
    """Refuse a federation whose rounds cannot end, or whose clients would break their privacy."""
    given, cohort = config.deployment, config.training.cohort
    check_options(config.model.name, config.model.options)
    method = config.composed
    require(
        not needs_vocabulary(config.model.name) or bool(config.data.words),
        f"model '{config.model.name}' is for token ids, which must mean the same at all clients: "
        "name a file of words in [data], words = 'words.txt', with one word in each line",
    )
    if config.data.words:
        read_words(Path(config.data.words))  # fails now where it would fail after clients came
    require(
        not method.pools_data,
        f"{method.name} pools the samples of all clients, which a deployment cannot: simulate it",
    )
    require(
        given.evaluate == "clients" or not any(map(has_own_part, method.pieces)),
        f"{method.name}: clients keep a part of the model, so the server cannot evaluate it: set "
        "evaluate = 'clients' in [deployment]",
    )
    if config.data.name not in SOURCES:
        raise unknown_name_error("data source", config.data.name, SOURCES)
    require(
        config.training.sampling == "fixed",
        "sampling = 'coin' is for simulations: set sampling = 'fixed' in [training]",
    )
    require(
        config.training.server_validation == 0,
        "server_validation is for simulations: in a deployment the training samples are the "
        "clients', and the server has none; set it to 0",
    )
    require(
        given.minimum <= cohort,
        f"deployment.minimum is {given.minimum}, but rounds have {cohort} clients (training)",
    )
    require(
        bool(given.classes) or not given.secure,
        "with deployment.secure clients do not say which classes they have: list the classes of "
        "all clients in the config, e.g. classes = ['benign', 'malignant'] in [deployment]",
    )
    least = max(given.threshold, given.minimum)
    require(
        not (given.secure and given.threshold) or least <= cohort < 2 * least,
        f"deployment.threshold is {given.threshold}: it must be more than half of the {cohort} "
        "clients of a round and at most all of them; 0 means two thirds",
    )
    _check_reported(config)
    if config.privacy is None:
        return
    require(
        given.evaluate == "server",
        "with [privacy] clients send no accuracies: set evaluate = 'server' in [deployment]",
    )
    require(
        bool(given.mean),
        "with [privacy] clients send no sums of inputs: set mean and std in [deployment] from "
        "public data or by convention, one number for each channel or column",
    )
    require(
        not given.max_norm,
        "[privacy] clips every update already (privacy.clip): leave out deployment.max_norm",
    )
    check_accountable(config)
    if privacy := config.make_privacy():
        privacy.check(config.composed)


def _check_reported(config: Config) -> None:
    """Refuse results that a deployment cannot give."""
    training = config.training
    require(
        not training.fine_tune,
        "fine_tune trains the reported model at every client once more, which only a simulation "
        "does: leave it out, and let clients fine-tune the model that they get",
    )
    chooses = training.select_by is not None or training.report == "best"
    require(
        config.deployment.evaluate == "clients" or not chooses,
        "with deployment.evaluate = 'server' the last round is reported, because one test split "
        "cannot both choose a round and measure it: leave out select_by and report = 'best'",
    )


def check_enough(data: Dataset, config: Config) -> None:
    """Refuse data that leave no sample for training or for validation."""
    samples, share = len(data.train), config.training.validation
    held = validation_size(samples, share)
    require(
        (held > 0 or not share) and held < samples,
        f"{samples} training samples are too few to take part: with {share:.0%} of them held out "
        f"(training.validation), {samples - held} are for training and {held} for validation",
    )


def check_batches(data: Dataset, config: Config) -> None:
    """Refuse data that leave a batch of one sample if the network cannot train on it."""
    samples = len(data.train) - validation_size(len(data.train), config.training.validation)
    training = LocalTraining.from_config(config.training)
    if find_single_samples({"this client": samples}, training):
        network = build_model(config, data, pretrained=False)
        check_single_samples(network, data.example, {"this client": samples}, training)


def check_accountable(config: Config) -> None:
    """Refuse [privacy] where the accountant that computes epsilon is not installed."""
    if config.privacy is not None:
        import_dp_accounting()


def list_warnings(config: Config) -> list[str]:
    """Return warnings about settings that are allowed but probably not intended."""
    clients, minimum = config.training.cohort, config.deployment.minimum
    cases = {
        TWO_CLIENTS: config.deployment.secure and clients < 3,
        MUCH_NOISE.format(minimum, clients): config.privacy is not None and 2 * minimum < clients,
    }
    return [warning for warning, applies in cases.items() if applies]


def describe_differences(one: Config, other: Config, sides: tuple[str, str]) -> str:
    """Return the first differences of two configs in keys that must agree on all machines."""
    first, second = (
        {key: value for key, value in config.as_toml().items() if key not in LOCAL}
        for config in (one, other)
    )
    return "; ".join(islice(list_differences(first, second, sides=sides), 5))
