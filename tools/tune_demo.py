"""How the demo's hyper-parameters were chosen: on validation accuracy, never on the test set.

Every method gets the same learning rates to choose from, FedFM and FedFM-Lite their strengths.
The seeds are not those of the demo. Not chosen here: the partition, the start round, and the number
of rounds. Run it with `python tools/tune_demo.py`; it takes some
minutes on one core. The choice goes into fedfm.cli.demo.
"""

from collections.abc import Iterator
from itertools import product

import numpy as np
import torch

from fedfm import UserError
from fedfm.config import Config, load_config
from fedfm.run.runner import run_configs

RATES = (0.01, 0.03, 0.1)
STRENGTHS = (0.5, 1.0, 2.0, 5.0)
SEEDS = (100, 101, 102)


def candidates() -> Iterator[list[str]]:
    """Yield every setting that is tried, as overrides of the built-in config."""
    for lr in RATES:
        yield ["method=fedavg", f"lr={lr}"]
    for method, lr, strength in product(("fedfm", "fedfm-lite"), RATES, STRENGTHS):
        settings = [f"{method}.start_round=5", f"{method}.strength={strength}"]
        yield [f"method={method}", f"lr={lr}", *settings]


def validation_accuracy(config: Config) -> float:
    """Return the best mean local validation accuracy in percent; 0 for a run that diverges."""
    try:
        return 100 * (run_configs([config])[0].best.val_accuracy or 0.0)
    except UserError:
        return 0.0


def main() -> None:
    """Print the validation accuracies of every candidate."""
    torch.set_num_threads(1)
    for overrides in candidates():
        configs = [load_config("digits", [*overrides, f"seed={seed}"]) for seed in SEEDS]
        print(
            f"{np.mean([*map(validation_accuracy, configs)]):6.2f}  {'  '.join(overrides)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
