"""Send the rounds of a run to TensorBoard or MLflow; the run's folder has everything, too."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedfm.core.errors import UserError, missing_package_error, unknown_name_error
from fedfm.core.tables import flatten_keys
from fedfm.run.records import RoundRecord

Tracker = Callable[[RoundRecord], None]
"""Takes a round's record."""


@contextmanager
def open_trackers(
    names: Sequence[str], config: Mapping[str, Any], folder: Path
) -> Iterator[Tracker]:
    """Yield a function that sends a run's rounds to the named services.

    Services are opened after the first round, so a run that never begins leaves nothing there.
    """
    for name in names:
        if name not in SERVICES:
            raise unknown_name_error("tracking service", name, SERVICES)
        if find_spec(name) is None:
            raise missing_package_error(f"tracking with {name} needs it", name)
        if name == "mlflow" and "MLFLOW_TRACKING_URI" not in os.environ:
            raise UserError("tracking with mlflow: set MLFLOW_TRACKING_URI to the server's address")
    with ExitStack() as stack:
        opened: list[Tracker] = []

        def track(record: RoundRecord) -> None:
            if not opened:
                opened.extend(stack.enter_context(SERVICES[name](config, folder)) for name in names)
            for service in opened:
                service(record)

        yield track


def list_metrics(record: RoundRecord) -> dict[str, float]:
    """Return the numbers of a round by name, without the round; a private run has no loss."""
    numbers = record.numbers.items()
    return {name: float(value) for name, value in numbers if name != "round" and value is not None}


@contextmanager
def open_tensorboard(config: Mapping[str, Any], folder: Path) -> Iterator[Tracker]:
    """Write event files to the folder `open_tensorboard` in the run's folder."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder / "tensorboard"))
    writer.add_text("config", "\n".join(f"    {k} = {v}" for k, v in flatten_keys(config).items()))

    def track(record: RoundRecord) -> None:
        for name, value in list_metrics(record).items():
            writer.add_scalar(name, value, record.round)

    try:
        yield track
    finally:
        writer.close()


@contextmanager
def open_mlflow(config: Mapping[str, Any], folder: Path) -> Iterator[Tracker]:
    """Log to a run of the experiment "fedfm" on the server at $MLFLOW_TRACKING_URI."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client = MlflowClient()
    known = client.get_experiment_by_name("fedfm")
    experiment = known.experiment_id if known else client.create_experiment("fedfm")
    run = client.create_run(experiment, run_name=folder.name).info.run_id
    client.log_batch(
        run, params=[Param(name, str(value)) for name, value in flatten_keys(config).items()]
    )

    def track(record: RoundRecord) -> None:
        now, step = int(1000 * time.time()), record.round
        values = [Metric(name, value, now, step) for name, value in list_metrics(record).items()]
        client.log_batch(run, metrics=values)

    try:
        yield track
    except BaseException:
        client.set_terminated(run, "KILLED")
        raise
    for name in ("config.toml", "summary.json", "rounds.jsonl"):
        if (folder / name).exists():
            client.log_artifact(run, str(folder / name))
    client.set_terminated(run)


SERVICES = {"tensorboard": open_tensorboard, "mlflow": open_mlflow}
