"""One group of clients and the sums of its masked answers, which the server cannot read."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from fedfm.config.deployment import Deployment
from fedfm.core import trees
from fedfm.core.errors import UserError
from fedfm.core.ledger import Traffic
from fedfm.core.trees import Tree
from fedfm.deploy import secure
from fedfm.deploy.errors import SumLost, insist
from fedfm.deploy.masking import merge_answer, split_answer, tree_to_pieces
from fedfm.deploy.packets import Packet
from fedfm.deploy.secure import PublicKeys, Words
from fedfm.deploy.server.sums import Ask, Collected, Questions, log_exclusion, read_valid

Blame = Callable[[Iterable[int], str], None]
"""Called with clients that are at fault, and the reason."""


class MaskedSum:
    """The clients of a group, whose keys serve one sum or several of a round."""

    def __init__(
        self,
        ask: Ask,
        deployment: Deployment,
        clients: Sequence[int],
        purposes: Sequence[str],
        blame: Blame,
    ) -> None:
        self.ask, self.deployment, self.blame = ask, deployment, blame
        self.clients, self.purposes = clients, purposes
        self.public: dict[int, PublicKeys] = {}
        self.encrypted_shares: dict[int, dict[str, str]] = {}
        """The encrypted shares to every client that takes part, by sender."""
        self.threshold, self.ready = 0, False

    def collect(self, kind: str, questions: Questions, like: Tree) -> Collected:
        """Return the sum of answers like `like`, as long as `threshold` clients stay.

        Raise `SumLost` if a client has spoilt it.
        """
        extra = Traffic(handshakes=1)
        if not self.ready:
            self._set_up()
            extra += Traffic(handshakes=2)
        survivors, total = self._add_masked(kind, questions, like)
        dropped = sorted(self.encrypted_shares.keys() - set(survivors))
        facts = {"purpose": kind, "survivors": survivors, "dropped": dropped}
        answers = self.ask("reveal", {client: Packet(facts) for client in survivors})
        shares = self._read_shares(answers, survivors, dropped)
        words, liars = secure.unmask(
            total, kind, self.public, survivors, dropped, shares, self.threshold
        )
        self.blame(liars, "its shares are wrong")
        parts = secure.decode(words, *split_answer(like), len(survivors), self.deployment.range)
        result = average_counters(trees.complete(merge_answer(*parts), like), len(survivors))
        return Collected(result, survivors, extra)

    def _set_up(self) -> None:
        """Exchange the clients' keys and encrypted shares."""
        self.public = self._collect_keys()
        self.threshold = self._threshold(len(self.public))
        few = f"{len(self.public)} clients sent keys, {self.threshold} are needed"
        insist(len(self.public) >= self.threshold, few)
        texts = {str(client): keys.to_bytes().decode() for client, keys in self.public.items()}
        facts = {"public": texts, "threshold": self.threshold}
        answers = self.ask("shares", {k: Packet(facts | {"client": k}) for k in self.public})
        self.encrypted_shares = _sort_encrypted_shares(
            {k: answer.facts.get("letters") for k, answer in answers.items()}
        )
        self.ready = True

    def _collect_keys(self) -> dict[int, PublicKeys]:
        def read(client: int, answer: Packet) -> PublicKeys:
            keys = PublicKeys.from_bytes(str(answer.facts.get("public")).encode())
            keys.check(set(self.purposes), client)
            return keys

        question = Packet({"purposes": list(self.purposes)})
        return read_valid("keys", self.ask("keys", dict.fromkeys(self.clients, question)), read)

    def _threshold(self, clients: int) -> int:
        """Return how many clients must reveal shares; never fewer than the minimum of a sum."""
        wanted = self.deployment.threshold or -(-2 * clients // 3)
        return max(2, wanted, self.deployment.minimum)

    def _add_masked(self, kind: str, questions: Questions, like: Tree) -> tuple[list[int], Words]:
        """Ask the clients that take part; return those that answer, and the sum of their words."""
        total = Words.zeros(*secure.sizes(*split_answer(like)))
        asked = {
            client: Packet(
                {**facts, "letters": self.encrypted_shares[client], "range": self.deployment.range},
                sent,
            )
            for client, (facts, sent) in questions.items()
            if client in self.encrypted_shares
        }

        accused: dict[int, int] = {}

        def add(client: int, answer: Packet) -> None:
            if "accused" in answer.facts:
                accused[client] = int(answer.facts["accused"])
                raise UserError(str(answer.facts.get("reason")))
            secure.add(total, tree_to_pieces(answer.trees.get("words", {})), client)

        survivors = [*read_valid(kind, self.ask(kind, asked), add)]
        _judge(accused, len(asked))
        return survivors, total

    def _read_shares(
        self, answers: Mapping[int, Packet], survivors: Sequence[int], dropped: Sequence[int]
    ) -> dict[int, dict[int, bytes]]:
        def read(client: int, answer: Packet) -> dict[int, bytes]:
            given = {int(k): bytes.fromhex(v) for k, v in answer.facts["shares"].items()}
            secure.check_shares(client, given, self.public, survivors, dropped)
            return given

        return read_valid("reveal", answers, read)


def _judge(accused: Mapping[int, int], clients: int) -> None:
    """Raise `SumLost` if most others cannot read a client's encrypted shares: then it is at fault.

    A single complaint does not show who lies; the one that complains misses the sum.
    """
    for client, complaints in Counter(accused.values()).items():
        if complaints > 1 and 2 * complaints >= clients - 1:
            who = ", ".join(str(k) for k in sorted(accused) if accused[k] == client)
            raise SumLost(
                f"clients {who} cannot read the encrypted shares of client {client}", [client]
            )


def _sort_encrypted_shares(encrypted_shares: Mapping[int, object]) -> dict[int, dict[str, str]]:
    """Return by receiver the encrypted shares, given by sender; leave out incomplete senders."""
    everyone = set(encrypted_shares)
    complete = {
        sender: written
        for sender, written in encrypted_shares.items()
        if isinstance(written, dict) and {str(k) for k in everyone - {sender}} <= written.keys()
    }
    for client in sorted(everyone - set(complete)):
        log_exclusion(client, "shares", "it has not written encrypted shares to every other client")
    return {
        client: {
            str(sender): str(complete[sender][str(client)])
            for sender in complete
            if sender != client
        }
        for client in complete
    }


def average_counters(total: Tree, clients: int) -> Tree:
    """Replace the counters of a masked sum by their mean: a sum does not show the largest."""
    if "counters" not in total:
        return total
    mean = trees.tree_map(lambda leaf: leaf // clients, total["counters"])
    return total | {"counters": mean}
