"""What clients that have introduced themselves agree on, and which of them do not fit."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from fedfm.core.errors import require
from fedfm.data.preprocessing import encode_labels
from fedfm.deploy.agreement import Agreement, Introduction, list_names
from fedfm.deploy.data_form import name_form

T = TypeVar("T")


def agree(
    introductions: Mapping[int, Introduction], wanted_classes: Sequence[str] | None = None
) -> tuple[Agreement, dict[int, str]]:
    """Return what the clients agree on, and why each of the others does not fit, by node.

    `introductions` is in the order in which the clients came. The classes are the wanted ones or
    all that clients have, in the order that the clients share or else by value or letter. Shape,
    type and columns are those of most clients; in a tie, those of the first client by name.
    """
    misfits = _find_duplicates(introductions)
    distinct = [client for node, client in introductions.items() if node not in misfits]
    require(len(distinct) > 0, "no client has introduced itself")
    left = sorted(distinct, key=lambda client: client.name)
    if wanted_classes:
        wanted = set(wanted_classes)
        left = [client for client in left if wanted.issuperset(client.classes)] or left
    typical = _most_common(left, lambda client: client.form)
    left = [client for client in left if client.form == typical.form]
    named = [client for client in left if client.columns] or left
    columns = _most_common(named, lambda client: client.columns).columns
    left = [client for client in left if client.columns in ((), columns)]
    classes = tuple(wanted_classes or ()) or _merge_classes(left)
    form = typical.model_dump(include={"shape", "dtype", "parts"})
    agreement = Agreement.parse(form | {"classes": classes, "columns": columns})
    for node, client in introductions.items():
        if node not in misfits and (reason := explain_misfit(agreement, client)):
            misfits[node] = reason
    return agreement, misfits


def explain_misfit(agreement: Agreement, client: Introduction) -> str | None:
    """Return why a client cannot take part; None if it can."""
    if client.form != agreement.form:
        return (
            f"client '{client.name}' has inputs of {name_form(client)}, the federation of "
            f"{name_form(agreement)}; {_suggest_fix(client.shape, agreement.shape)}"
        )
    if client.columns not in ((), agreement.columns) and agreement.columns:
        pairs = zip(client.columns, agreement.columns, strict=False)
        here, there = next((a, b) for a, b in pairs if a != b)
        return (
            f"client '{client.name}' has column '{here}' where the federation has '{there}'; "
            "put the table's columns into the same order"
        )
    strange = sorted(set(client.classes) - set(agreement.classes))
    if strange:
        return (
            f"client '{client.name}' has class {list_names(strange)}, which is not one of the "
            f"federation's {len(agreement.classes)} ({list_names(agreement.classes)}); "
            "rename it or leave it out"
        )
    return None


def _find_duplicates(introductions: Mapping[int, Introduction]) -> dict[int, str]:
    """Return a reason for each node whose name an earlier node has."""
    taken: set[str] = set()
    reasons = {}
    for node, client in introductions.items():
        if client.name in taken:
            reasons[node] = f"there is another client '{client.name}'; choose another name"
        taken.add(client.name)
    return reasons


def _most_common(values: Sequence[T], key: Callable[[T], object]) -> T:
    """Return the first value of those whose key is most common; in a tie, of the first key."""
    keys = [repr(key(value)) for value in values]
    return values[keys.index(Counter(keys).most_common(1)[0][0])]


def _merge_classes(introductions: Sequence[Introduction]) -> tuple[str, ...]:
    """Return all clients' classes in their common order, else by value or letter."""
    orders = {client.classes for client in introductions}
    if len(orders) == 1:
        return orders.pop()
    return encode_labels([name for classes in orders for name in classes])[0]


def _suggest_fix(shape: tuple[int, ...] | None, wanted: tuple[int, ...] | None) -> str:
    """Return what a client can do about inputs of another form."""
    if shape is None or wanted is None:
        return "give them the federation's parts"
    if shape == wanted:
        return "convert them"
    if len(shape) != len(wanted):
        return "they are data of another kind"
    if len(wanted) == 1:
        return f"give the table the federation's {wanted[0]} columns"
    if shape[0] != wanted[0]:
        return "save all images in grey" if wanted[0] == 1 else "save an image in colour"
    return f"scale them: --size {wanted[-1]}, or size in [data] of the site file"
