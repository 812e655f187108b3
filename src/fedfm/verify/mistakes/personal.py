"""Mistakes in methods that keep models at clients: FedBN, FedPer, FedRep, Ditto, local."""

from fedfm.core.trees import Tree
from fedfm.methods import (
    Centralised,
    Ditto,
    FedBN,
    FedPer,
    FedRep,
    Local,
    Model,
    Piece,
    Stage,
    Task,
)
from fedfm.rounds import group, stages
from fedfm.rounds.group import SECOND, ClientGroup
from fedfm.verify.mistakes.planting import plant, plant_in

starting_models, prepare_second = group.make_starting_models, stages.prepare_second


@plant("batch norm is found by 'bn' in the name")
class BatchNormByName(FedBN):
    """A batch norm with another name is averaged."""

    def personal(self, task: Task) -> frozenset[str]:
        return frozenset(name for name in task.norms if "bn" in name)


@plant("only the weights of batch norm stay, its statistics are averaged")
class SharesStatistics(FedBN):
    """Running means and variances travel."""

    def personal(self, task: Task) -> frozenset[str]:
        return task.norms & task.model.params.keys()


@plant("the head's bias is averaged")
class SharesBias(FedPer):
    """Only the head's weight stays."""

    def personal(self, task: Task) -> frozenset[str]:
        return frozenset(name for name in task.head if name.endswith("weight"))


@plant("the head goes on while the body trains", head_epochs=2)
class TrainsHeadTwice(FedRep):
    """The second stage trains everything."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        return Stage(self.head_epochs, trains="personal"), Stage()


@plant("body before head", head_epochs=2)
class BodyFirst(FedRep):
    """The stages change places."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        return Stage(trains="shared"), Stage(self.head_epochs, trains="personal")


@plant("what clients keep is averaged all the same")
class SharesEverything(Local):
    """Nothing is personal."""

    def personal(self, task: Task) -> frozenset[str]:
        return frozenset()


@plant("samples are not pooled")
class SamplesNotPooled(Centralised):
    """Clients train by themselves, and are averaged."""

    pools_data = False


@plant_in(
    group,
    "make_starting_models",
    "a client's second model starts anew in every round",
    Ditto(strength=0.5),
)
def forget_second(shared: Model, kept: list[Tree], which: str = group.OWN) -> Model:
    """Start second models at the global one."""
    return starting_models(shared, [] if which == SECOND else kept, which)


@plant_in(
    stages,
    "prepare_second",
    "the pull is towards the client's own model instead of the global one",
    Ditto(strength=0.5),
)
def pull_to_own(piece: Piece, clients: ClientGroup) -> Tree:
    """Take the second model for the received one."""
    return prepare_second(piece, clients._replace(base=clients.second))
