"""How the demo's hyper-parameters were chosen: on validation accuracy, never on the test set.

Every method gets the same learning rates to choose from, FedFM and FedFM-Lite their strengths.
The seeds are not those of the demo. Not chosen here: the partition, the start round, and the number
of rounds. Run it with `python tools/tune_demo.py`; it takes some
minutes on one core. The choice goes into fedfm.cli.demo.
"""

import itertools

import numpy as np
import torch

from fedfm import UserError, simulate
from fedfm.config import Config, load_config
from fedfm.run.prepare import build_model, load_data

RATES = (0.01, 0.03, 0.1)
STRENGTHS = (0.5, 1.0, 2.0, 5.0)
SEEDS = (100, 101, 102)


MATCHING = (
    ["method=fedfm", "fedfm.start_round=5"],
    ["method=fedfm-lite", "fedfm-lite.start_round=5"],
)


def candidates() -> list[list[str]]:
    """Every setting that is tried, as overrides of the built-in config."""
    plain = [["method=fedavg", f"lr={lr}"] for lr in RATES]
    matching = [
        [*method, f"lr={lr}", f"{method[0].removeprefix('method=')}.strength={strength}"]
        for method, lr, strength in itertools.product(MATCHING, RATES, STRENGTHS)
    ]
    return plain + matching


def validation_accuracy(config: Config) -> float:
    """The best mean local validation accuracy in percent; 0 for a run that diverges."""
    data = load_data(config)
    try:
        result = simulate(
            build_model(config, data),
            data,
            config.composed.pieces,
            partition=config.partition,
            training=config.training,
            seed=config.seed,
        )
    except UserError:
        return 0.0
    return 100 * result.best.val_accuracy


def main() -> None:
    """Print the validation accuracies of every candidate."""
    torch.set_num_threads(1)
    for overrides in candidates():
        found = [
            validation_accuracy(load_config("digits", [*overrides, f"seed={seed}"]))
            for seed in SEEDS
        ]
        print(f"{np.mean(found):6.2f}  {'  '.join(overrides)}", flush=True)


if __name__ == "__main__":
    main()
