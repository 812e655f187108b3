"""What a config must say before a federation begins, so that it does not fail in the middle."""

from fedfm.config import Config
from fedfm.core.errors import require
from fedfm.privacy.accounting import accountant

TWO_CLIENTS = (
    "two clients: each can take its own part off the sum and is left with the other's; secure sums "
    "hide clients from each other from three on"
)


def check_deployable(config: Config) -> None:
    """Refuse a private federation that would tell more than it says, or could not say what."""
    if config.privacy is None:
        return
    given = config.deployment
    require(
        given.evaluate == "server",
        "[privacy] keeps accuracies at the clients: set evaluate = 'server' in [deployment]",
    )
    require(
        bool(given.mean),
        "[privacy] keeps sums of inputs at the clients: give mean and std in [deployment], of "
        "public data or by convention; one number for each channel or column",
    )
    accountant()


def warnings(config: Config) -> list[str]:
    """What is allowed, but hardly meant."""
    small = config.deployment.secure and config.protocol.clients < 3
    return [TWO_CLIENTS] if small else []
