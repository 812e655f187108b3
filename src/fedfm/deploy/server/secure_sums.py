"""Secure sums over a cohort, whatever its clients do: repeated, divided, and who spoils them named.

A client that sends other words than its masks give spoils a sum, and the sum does not show whose
words were wrong. So the sum is asked for again in two halves: the one without this client counts.
In later rounds its half is divided anew, until one client is left that was in every lost sum.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from fedfm.config import Config
from fedfm.config.deployment import Deployment
from fedfm.core.errors import UserError
from fedfm.core.ledger import Traffic
from fedfm.core.trees import Tree
from fedfm.deploy.errors import SecureError, SumLost
from fedfm.deploy.events import AnswerLeftOut, SumRepeated, emit
from fedfm.deploy.server.answer_checks import AnswerChecks
from fedfm.deploy.server.masked_sum import MaskedSum
from fedfm.deploy.server.sums import Ask, Collected, PlainSums, Questions, add_answers
from fedfm.deploy.validation import to_one_line

TRIALS = 3
"""So many times at most, a client is asked for its part of one sum."""
SMALLEST = 3
"""The fewest clients of a half: of two, each would see the other's part."""
UNKNOWN = "the sum of its group is lost, and nobody can tell by whom: {}"
ALWAYS = "of all clients it alone was in every sum that was lost: {}"


@dataclass
class _Request:
    """A sum that is asked for, and what has come of it."""

    kind: str
    questions: Questions
    like: Tree
    purposes: Sequence[str]
    """This sum and the later ones of the round."""
    collected: list[tuple[MaskedSum, Collected]] = field(default_factory=list)
    lost: list[tuple[Sequence[int], str]] = field(default_factory=list)
    """The groups whose sum is spoilt, and why."""
    small: list[tuple[Sequence[int], SecureError]] = field(default_factory=list)
    """The groups of which too few clients are left."""
    extra: Traffic = field(default_factory=Traffic)

    def add_up(self) -> Collected:
        """Return the sum over all groups that have one."""
        sums = [collected for _, collected in self.collected]
        total = add_answers([each.total for each in sums])
        more = Traffic(handshakes=len(sums) - 1)
        extra = sum((each.extra for each in sums), self.extra + more)
        return Collected(total, sorted(k for each in sums for k in each.clients), extra)


class SecureSums:
    """Collects sums of masked answers: the masks hide each answer and cancel in the sum.

    `check` refuses a sum over some number of clients that cannot be true.
    """

    def __init__(
        self,
        ask: Ask,
        deployment: Deployment,
        check: Callable[[Tree, int], None] = lambda total, clients: None,
    ) -> None:
        self.ask, self.deployment, self.check = ask, deployment, check
        self.excluded: set[int] = set()
        """Clients that were at fault; they are not asked any more."""
        self.suspects: frozenset[int] = frozenset()
        """The clients that were in every lost sum; one of them is at fault, if only one is."""
        self.suspected_before: frozenset[int] = frozenset()
        """Those at the start of the round."""
        self.is_spoilt = False
        """Whether a group of this round has lost a sum."""
        self.groups: list[MaskedSum] = []
        """The groups whose keys serve the next sum of the round."""

    def collect(
        self, kind: str, questions: Questions, like: Tree, purposes: Sequence[str]
    ) -> Collected:
        """Return the sum of answers like `like`; `purposes` are all sums of the round.

        Raise `SumLost` if clients have spoilt it, and another `SecureError` if too few are left.
        """
        asked = {k: each for k, each in questions.items() if k not in self.excluded}
        request = _Request(kind, asked, like, purposes[purposes.index(kind) :])
        if kind == purposes[0]:
            self.groups, self.suspected_before, self.is_spoilt = [], self.suspects, False
        for group in self.groups or self._open(sorted(asked), request):
            self._collect(group, request, 1)
        self.groups = []
        if not request.collected:
            self.suspects = self.suspected_before  # the same halves again, see `_divide`
            raise self._explain(request)
        self._judge(request)
        if kind != purposes[-1]:
            self.groups = [group for group, _ in request.collected]
        return request.add_up()

    def _open(self, clients: list[int], request: _Request) -> list[MaskedSum]:
        """Return the first groups: everybody, or halves if one of them is suspected."""
        parts = self._divide(clients) if self.suspects.intersection(clients) else [clients]
        return [self._group(part, request) for part in parts]

    def _group(self, clients: list[int], request: _Request) -> MaskedSum:
        return MaskedSum(self.ask, self.deployment, clients, request.purposes, self._exclude)

    def _collect(self, group: MaskedSum, request: _Request, trial: int) -> None:
        """Collect the sum of a group or, if it is lost, those of its halves."""
        questions = {k: request.questions[k] for k in group.clients if k in request.questions}
        try:
            collected = group.collect(request.kind, questions, request.like)
            self._check_total(collected.total, len(collected.clients))
            request.collected.append((group, collected))
        except SumLost as lost:
            request.extra += Traffic(handshakes=4)
            self._repeat(group, request, trial, lost)
        except SecureError as problem:
            request.small.append((group.clients, problem))

    def _repeat(self, group: MaskedSum, request: _Request, trial: int, lost: SumLost) -> None:
        """Ask for a lost sum again, without the clients at fault or else in halves."""
        reason = to_one_line(lost)
        self._exclude(lost.clients, reason)
        if trial == TRIALS:
            request.lost.append((group.clients, reason))
            return
        clients = [k for k in group.clients if k in request.questions and k not in self.excluded]
        parts = [clients] if lost.clients else self._divide(clients)
        emit(SumRepeated(request.kind, trial, reason, parts if len(parts) > 1 else None))
        for part in parts:
            self._collect(self._group(part, request), request, trial + 1)

    def _divide(self, clients: list[int]) -> list[list[int]]:
        """Return halves with about as many suspects each; one group if a half were too small.

        The sums of one round are over groups that do not overlap, or of which one contains the
        other. So their differences, too, are sums over no fewer clients than a half has.
        """
        if len(clients) < 2 * max(SMALLEST, self.deployment.minimum, self.deployment.threshold):
            return [clients]
        order = sorted(clients, key=lambda client: (client not in self.suspects, client))
        return [sorted(order[::2]), sorted(order[1::2])]

    def _check_total(self, total: Tree, clients: int) -> None:
        try:
            self.check(total, clients)
        except UserError as problem:
            raise SumLost(f"the sum cannot be true, and does not show whose: {problem}") from None

    def _explain(self, request: _Request) -> SecureError:
        """Return why there is no sum."""
        if not request.lost:
            return request.small[-1][1]
        reason = request.lost[-1][1]
        one_of = f"; one of {sorted(self.suspects)} is at fault" if self.suspects else ""
        return SumLost(f"'{request.kind}': {TRIALS} sums in a row are lost: {reason}{one_of}")

    def _judge(self, request: _Request) -> None:
        """Leave out the groups without a sum, and name the client at fault if it must be this one.

        If a single client is at fault it was in every lost sum, even if it sometimes was honest.
        """
        missed = [(clients, UNKNOWN.format(reason)) for clients, reason in request.lost]
        missed += [(clients, to_one_line(problem)) for clients, problem in request.small]
        for clients, reason in missed:
            for client in sorted(set(clients) - self.excluded):
                emit(AnswerLeftOut(reason, client=client, question=request.kind))
        self.is_spoilt |= bool(request.lost)
        if len(request.lost) == 1:
            clients, reason = request.lost[0]
            self.suspects = self.suspects.intersection(clients) or frozenset(clients)
            if len(self.suspects) == 1:
                self._exclude(self.suspects, ALWAYS.format(reason))
        elif len(request.purposes) == 1 and not self.is_spoilt:
            everybody = {k for _, collected in request.collected for k in collected.clients}
            if self.suspects <= everybody:
                self.suspects = frozenset()  # the fault is gone

    def _exclude(self, clients: Iterable[int], reason: str) -> None:
        for client in sorted(clients):
            self.excluded.add(client)
            emit(AnswerLeftOut(reason, client=client, for_good=True))
        self.suspects -= self.excluded


Collector = PlainSums | SecureSums


def make_collector(ask: Ask, config: Config) -> Collector:
    """Return what collects the sums of a run."""
    checks = AnswerChecks(config)
    if config.deployment.secure:
        return SecureSums(ask, config.deployment, checks.check_total)
    return PlainSums(ask, checks.check)
