"""What a client's answer must look like: a round of one client, worked through without numbers."""

from fedfm.core.client_states import InMemory
from fedfm.core.trees import to_device
from fedfm.methods.base import Task
from fedfm.methods.composition import Method
from fedfm.privacy.guard import Guard
from fedfm.rounds.clients import answer_measure, answer_train, make_job, prepare_group
from fedfm.rounds.costs import make_single_client
from fedfm.rounds.exchange import Request, Sums


def expected(ask: Request, method: Method, task: Task, guard: Guard | None = None) -> Sums:
    """The answer of one client to `ask`, all tensors on the meta device."""
    model = ask.model.map(lambda tree: to_device(tree, "meta"))
    fed = make_single_client(method, Task(model, task.classes, task.features), guard)
    blank = ask._replace(cohort=[0], model=model, down=to_device(ask.down, "meta"), kept=InMemory())
    visit = prepare_group(blank, fed)
    if ask.kind == "measure":
        sums = answer_measure(visit, fed, blank)
        return sums._replace(total={"reports": sums.total})
    training = make_job(visit, fed, blank)
    return answer_train(visit, fed, blank, training, fed.executor.train(training))
