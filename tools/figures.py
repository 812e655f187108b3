"""Draws the figures of docs/batchnorm.md and docs/scaffold-with-momentum.md."""

from pathlib import Path

import numpy as np
import torch

from fedfm import FedAvg, Partition, Training, data, models
from fedfm.config import make_config
from fedfm.methods import Model
from fedfm.optim import Sgd
from fedfm.report.figure import COLOURS, begin_chart, save_figure
from fedfm.run.records import Progress
from fedfm.run.simulation import Simulation

DOCS = Path(__file__).parent.parent / "docs"


def scaffold_controls(divide_by_steps: bool, rounds: int = 40) -> np.ndarray:
    """max_i |c_i| of SCAFFOLD on two quadratics (w - t_i)^2 / 2, t = -1 and 1, rho = 0.9."""
    targets, steps, sgd = np.array([-1.0, 1.0]), 20, Sgd(0.01, 0.9, 0.0)
    a = float(steps if divide_by_steps else sgd.accumulation(torch.tensor([steps])))
    x, c, own = 0.3, 0.0, np.zeros(2)
    sizes = []
    for _ in range(rounds):
        w, velocity = np.full(2, x), np.zeros(2)
        for _ in range(steps):
            velocity = sgd.momentum * velocity + (w - targets) + c - own
            w = w - sgd.lr * velocity
        new = own - c + (x - w) / (a * sgd.lr)
        x, c, own = w.mean(), c + (new - own).mean(), new
        sizes.append(np.abs(own).max())
    return np.array(sizes)


def draw_scaffold() -> None:
    """Control variates over rounds, with either divisor."""
    path = DOCS / "scaffold-with-momentum.png"
    figure, axes = begin_chart("SCAFFOLD, momentum 0.9, two quadratics", path)
    axes.set(xlabel="round", ylabel="largest |c_i|")
    for wrong, label in ((True, "divided by K eta"), (False, "divided by a(K, rho) eta")):
        sizes = scaffold_controls(wrong)
        axes.semilogy(range(1, len(sizes) + 1), sizes, color=COLOURS[int(wrong)], label=label)
    axes.axhline(1, color="#999999", linestyle=":", label="the true gradients at the optimum")
    axes.legend(frameon=False)
    save_figure(figure, path)


def buffer_curves(rounds: int = 12) -> np.ndarray:
    """Test accuracy with averaged buffers and with those nobody updates [2, rounds]."""
    digits = data.load("digits")
    torch.manual_seed(0)
    module = models.build("cnn", shape=digits.shape, classes=10, norm="batch")
    training = Training(rounds=rounds, epochs=2, batch_size=16)
    config = make_config(
        FedAvg(), partition=Partition("niid2"), training=training, seed=0, executor="stacked"
    )
    simulation = Simulation(module, digits, config)
    progress, left_alone = Progress(simulation.start), []
    for _ in range(rounds):
        progress = simulation.advance(progress)
        stale = Model(progress.state.model.params, simulation.start.model.buffers)
        left_alone.append(simulation.evaluate(stale)[1])
    return np.array([[record.test_accuracy for record in progress.records], left_alone])


def draw_buffers() -> None:
    """The same parameters, with and without the averaged statistics."""
    path = DOCS / "batchnorm.png"
    figure, axes = begin_chart("FedAvg, a CNN with batch norm, digits (NIID-2)", path)
    axes.set(xlabel="round", ylabel="test accuracy (%)")
    labels = ("statistics averaged with the model", "only parameters averaged")
    for curve, label, colour in zip(100 * buffer_curves(), labels, COLOURS, strict=False):
        axes.plot(range(1, len(curve) + 1), curve, color=colour, label=label)
    axes.legend(frameon=False, loc="center right")
    save_figure(figure, path)


if __name__ == "__main__":
    torch.set_num_threads(1)
    draw_scaffold()
    draw_buffers()
