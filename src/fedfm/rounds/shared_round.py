"""A round whose clients are shared among processes: each one's sums are added to the others'.

Every process runs the server's side. It does the same everywhere, because it sees only sums.
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import TypeVar

from fedfm.core import trees
from fedfm.core.client_states import ClientStates, InMemory, OnDisk
from fedfm.core.ledger import Traffic
from fedfm.engine.processes import Processes
from fedfm.rounds.federation import Federation
from fedfm.rounds.messages import Request, Sums

Outcome = TypeVar("Outcome")
COUNTERS = "counters"
"""The part of a sum of contributions that is not summed: the largest counts."""


def share_round(
    server: Generator[Request, Sums, Outcome], fed: Federation
) -> Generator[Request, Sums, Outcome]:
    """Return the server's side of a round as the clients of this process see it."""
    return server if fed.processes.size == 1 else _share_requests(server, fed)


def _share_requests(
    server: Generator[Request, Sums, Outcome], fed: Federation
) -> Generator[Request, Sums, Outcome]:
    """Ask this process's clients what the server asks all, and answer with the sum over all."""
    request = next(server)
    while True:
        local_cohort = choose_cohort(request.cohort, fed)
        sums = (
            yield request._replace(cohort=local_cohort)
            if local_cohort
            else _repeat_first_client(request)
        )
        whole = add_sums(sums if local_cohort else _answer_nothing(request), request, fed.processes)
        try:
            request = server.send(whole)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome


def choose_cohort(cohort: Sequence[int], fed: Federation) -> list[int]:
    """Return the clients of a cohort that this process trains."""
    sizes = {client: len(fed.samples[client]) for client in cohort}
    return deal_clients(cohort, sizes, fed.processes.size)[fed.processes.rank]


def deal_clients(
    cohort: Iterable[int], sizes: Mapping[int, int], processes: int
) -> list[list[int]]:
    """Deal clients with so many samples to processes: equally many to each, and alike in size."""
    shares: list[list[int]] = [[] for _ in range(processes)]
    for place, client in enumerate(sorted(cohort, key=lambda client: -sizes[client])):
        turn, seat = divmod(place, processes)
        shares[seat if turn % 2 == 0 else processes - 1 - seat].append(client)
    return [sorted(share) for share in shares]


def _repeat_first_client(request: Request) -> Request:
    """Return a request to one client, whose answer will not count and is not kept.

    A process without clients in a round (drawn by coins) does this work again meanwhile.
    """
    first = request.cohort[0]
    return request._replace(cohort=[first], kept=InMemory({first: request.kept.get(first)}))


def _answer_nothing(request: Request) -> Sums:
    return Sums({}, [], [], request.kept, Traffic())


def add_sums(sums: Sums, request: Request, processes: Processes) -> Sums:
    """Return the sums over the clients of all processes, given those of this one."""
    kept = sums.kept is not request.kept
    facts = processes.gather(
        {
            "present": sums.present,
            "clients": sums.clients,
            "traffic": sums.traffic.as_dict(),
            "held": sums.held,
            "kept": sums.clients if kept and {*sums.clients} <= {*sums.kept} else [],
            "cleared": kept and not any(True for _ in sums.kept),
        }
    )
    summed = {name: part for name, part in sums.total.items() if name != COUNTERS}
    total = processes.add(summed)
    if largest := processes.find_largest(sums.total.get(COUNTERS, {})):
        total[COUNTERS] = largest
    return Sums(
        total,
        sorted(client for each in facts for client in each["present"]),
        sorted(client for each in facts for client in each["clients"]),
        _join_states(sums, request, [each["kept"] for each in facts], processes)
        if not any(each["cleared"] for each in facts)
        else request.kept.clear(),
        sum((Traffic(**each["traffic"]) for each in facts), Traffic()),
        max(each["held"] for each in facts),
    )


def _join_states(
    sums: Sums, request: Request, clients: Sequence[list[int]], processes: Processes
) -> ClientStates:
    """Return what all clients keep, given the clients of each process that have new states.

    States on disk are there already; states in memory go to every process.
    """
    after, old = request.round + 1, request.kept
    if isinstance(old, OnDisk):
        return old.restore({**old.rounds, **{k: after for each in clients for k in each}})
    local_states = trees.stack([sums.kept.get(k) for k in clients[processes.rank]] or [{}])
    for each, states in zip(clients, processes.spread(local_states), strict=True):
        old = old.update(dict(zip(each, trees.unstack(states, len(each)), strict=True)), after)
    return old
