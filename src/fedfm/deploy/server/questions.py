"""The questions of a round, its evaluation and the delivery of the result, by client."""

from collections.abc import Iterable

from fedfm.core.client_states import ClientStates, OnClients
from fedfm.core.trees import Tree
from fedfm.deploy.packets import Packet
from fedfm.deploy.server.enrolment import Enrolment
from fedfm.methods.base import Model, Task
from fedfm.methods.composition import Method
from fedfm.rounds.messages import Request
from fedfm.rounds.state import State


class QuestionWriter:
    """Writes what the clients of a federation are asked."""

    def __init__(self, method: Method, task: Task, clients: Enrolment) -> None:
        self.method, self.task, self.clients = method, task, clients

    def ask_cohort(self, request: Request, scored: Model | None) -> dict[int, Packet]:
        """Return the questions of a round's request; clients also test the model `scored`.

        It is sent only if clients start from another model.
        """
        whole, part = self._split_model(request.model)
        down = {"down": request.down} if request.down else {}
        if scored is not None and self.method.moves_start:
            down["scored"] = scored.params
        facts = {"sharing": request.sharing, "evaluate": scored is not None}
        models = {
            client: {"model": whole if client in request.first else part}
            for client in request.newcomers
        }
        return {
            client: Packet(
                self._facts(request.round, request.kept, client) | facts,
                down | models.get(client, {}),
            )
            for client in request.cohort
        }

    def ask_scores(self, state: State, clients: Iterable[int]) -> dict[int, Packet]:
        """Return the questions that only evaluate the model."""
        whole, part = self._split_model(state.model)
        facts = {"sharing": False, "evaluate": True}
        return {
            client: Packet(
                self._facts(state.round, state.clients, client) | facts,
                {"model": part if client in state.received else whole},
            )
            for client in clients
        }

    def deliver(self, model: Model, state: State, clients: Iterable[int]) -> dict[int, Packet]:
        """Return the messages with the run's final model, which clients complete by their part."""
        trees = {"model": model._asdict()}
        return {
            client: Packet(
                self._facts(state.round, state.clients, client) | {"sharing": False}, trees
            )
            for client in clients
        }

    def _split_model(self, model: Model) -> tuple[Tree, Tree]:
        """Return the first model that a client receives, and a later one."""
        whole, once = model._asdict(), self.method.sent_once(self.task)
        return whole, model.split(once)[1]._asdict() if once else whole

    def _facts(self, round: int, kept: ClientStates, client: int) -> dict[str, object]:
        every = self.method.share_every
        return {
            "round": round,
            "version": round // every * every,
            "kept": kept.rounds.get(client) if isinstance(kept, OnClients) else None,
            "norm": self.clients.norm,
            "unit": self.clients.unit,
        }
