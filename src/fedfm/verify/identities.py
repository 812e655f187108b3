"""Settings in which two methods are equal, and anchors that can be computed directly."""

import copy
from functools import partial

import torch
from torch import Tensor, nn

from fedfm.core.trees import Tree
from fedfm.engine.networks import copy_model
from fedfm.methods import FedAvg
from fedfm.methods.anchors import Anchored
from fedfm.verify.checks import check, only, same, same_model
from fedfm.verify.fixtures import Pieces, SmallFederation

EQUAL_STEPS = SmallFederation("tiny cnn with batch norm", sizes=(11, 8, 9, 10))
ONE_STEP = SmallFederation("tiny cnn with batch norm", epochs=1, batch_size=100)
CENTRAL = SmallFederation(
    sizes=(6, 6, 6, 6),
    epochs=1,
    batch_size=6,
    momentum=0.0,
    weight_decay=0.0,
    participation=1.0,
)


def equal_fedavg(small: SmallFederation, pieces: Pieces) -> None:
    """Compare three rounds with FedAvg's."""
    ours, plain = (small.play(method, 3) for method in (pieces, (FedAvg(),)))
    same_model(ours.model, plain.model, 1e-12)


check("equal steps", "if all clients take equally many steps it equals FedAvg", only("fednova"))(
    partial(equal_fedavg, EQUAL_STEPS)
)
check("one step", "with a single local step it equals FedAvg", only("fedprox"))(
    partial(equal_fedavg, ONE_STEP)
)


@check(
    "centralised",
    "full participation, one step of plain SGD, equal sizes: it equals SGD on all data",
    only("fedavg", "fedprox", "scaffold", "fednova"),
)
def train_centrally(pieces: Pieces) -> None:
    """Compare four rounds with four steps of one optimiser that has all the data."""
    module = copy.deepcopy(CENTRAL.module)
    optimiser = torch.optim.SGD(module.parameters(), lr=CENTRAL.lr)
    split = CENTRAL.data.train
    for _ in range(4):
        optimiser.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(module(split.inputs)[1], split.labels))
        optimiser.step()
    same_model(CENTRAL.play(pieces, 4).model, copy_model(module), 1e-12)


def pools(pieces: Pieces) -> bool:
    """Return whether this is one piece with weighted anchors."""
    return isinstance(pieces[0], Anchored) and pieces[0].anchors == "weighted" and len(pieces) == 1


@check(
    "pooled anchors", "weighted anchors are the pooled class means, however data are split", pools
)
def pool_anchors(pieces: Pieces) -> None:
    """Partition a data set in two ways, under a model that does not move."""
    for sizes in ((13, 6, 3, 9), (2, 20, 5, 4)):
        small = SmallFederation(sizes=sizes, lr=0.0, participation=1.0)
        server = small.play(pieces, 1).server[pieces[0].name]
        expected = class_means(small)
        same({"seen": server["seen"]}, {"seen": expected["seen"]}, where=f"{sizes}: ")
        held = server["anchors"][expected["seen"]]
        same({"anchors": held}, {"anchors": expected["means"]}, 1e-12, f"{sizes}: ")


def class_means(small: SmallFederation) -> Tree:
    """Return the mean features of the classes that occur [c, d], and which occur [C]."""
    split = small.data.train
    with torch.no_grad():
        features: Tensor = copy.deepcopy(small.module).eval()(split.inputs)[0]
    present = [c for c in range(len(small.data.classes)) if (split.labels == c).any()]
    seen = torch.zeros(len(small.data.classes), dtype=torch.bool)
    seen[present] = True
    means = [features[split.labels == c].mean(0) for c in present]
    return {"means": torch.stack(means), "seen": seen}
