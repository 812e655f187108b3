"""What a client's answer must look like: a round of one client, worked through without numbers."""

from fedfm.core.client_states import InMemory
from fedfm.core.trees import to_device
from fedfm.methods.base import Task
from fedfm.methods.composition import Method
from fedfm.privacy.guard import Guard
from fedfm.rounds.clients import begin, job, measured, trained
from fedfm.rounds.costs import one_client
from fedfm.rounds.exchange import Ask, Sums


def expected(ask: Ask, method: Method, task: Task, guard: Guard | None = None) -> Sums:
    """The answer of one client to `ask`, all tensors on the meta device."""
    model = ask.model.map(lambda tree: to_device(tree, "meta"))
    fed = one_client(method, Task(model, task.classes, task.features), guard)
    blank = ask._replace(cohort=[0], model=model, down=to_device(ask.down, "meta"), kept=InMemory())
    visit = begin(blank, fed)
    if ask.kind == "measure":
        sums = measured(visit, fed, blank)
        return sums._replace(total={"reports": sums.total})
    training = job(visit, fed, blank)
    return trained(visit, fed, blank, training, training.done_by(fed.executor))
