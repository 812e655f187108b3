"""What methods refuse, for all of them: a line that names the method, the setting and why."""

from collections.abc import Callable
from dataclasses import fields, replace
from itertools import combinations
from typing import Any, get_origin

import pytest

from fedfm import Piece, UserError, compose
from fedfm.methods import PIECES
from fedfm.methods.composition import uses_counts
from fedfm.methods.contract import overrides
from fedfm.verify.fixtures import SmallFederation

OPTIONS = [(kind, field) for kind in PIECES.values() for field in fields(kind)]
LARGEST = {
    **dict.fromkeys(("beta", "beta1", "beta2", "momentum", "moving_average"), 1.0),
    **{"mix": 1.1, "alpha of fedcm": 1.1, "alpha of mofedsam": 1.1, "alpha of fedrs": 1.1},
}
"""The least values that are too large, by option; other numbers have no upper bound."""


def refusal(make: Callable[..., Any], *args: Any, **settings: Any) -> str:
    """The one line of the error."""
    with pytest.raises(UserError) as error:
        make(*args, **settings)
    assert "\n" not in str(error.value)
    return str(error.value)


def wrong_values(kind: type[Piece], field: Any) -> list[Any]:
    """Values of an option that are of another type, or outside its range."""
    if field.type is bool:
        return ["no", 1, None]
    if get_origin(field.type):
        return ["neither", 1]
    most = LARGEST.get(field.name, LARGEST.get(f"{field.name} of {kind.name}"))
    half = [0.5] if field.type is int else []
    return ["many", True, None, float("nan"), -1, *half, *([] if most is None else [most])]


@pytest.mark.parametrize(("kind", "field"), OPTIONS, ids=lambda x: getattr(x, "name", x))
def test_a_value_outside_its_range_is_refused(kind, field):
    for value in wrong_values(kind, field):
        assert refusal(kind, **{field.name: value}).startswith(f"{kind.name}: {field.name} must be")


def test_two_pieces_do_not_claim_one_role():
    refused = set[str]()
    for first, second in combinations([kind() for kind in PIECES.values()], 2):
        if both := sorted(first.claims & second.claims):
            line = refusal(compose, [first, second])
            assert f"{first.name} and {second.name} cannot be combined" in line
            assert line.rpartition("both set the ")[2] in both
            refused |= {*both}
    roles = {"weights", "logits", "anchors", "stages", "server optimizer"}
    assert refused >= roles | {"client drift correction"}


@pytest.mark.parametrize("name", [n for n, kind in PIECES.items() if uses_counts(kind())])
def test_a_method_that_counts_classes_needs_labels(name):
    fed = SmallFederation().make_federation((PIECES[name](),))
    line = refusal(replace, fed, labels=None)
    assert line.startswith(f"{name} needs each client's class counts, but the data have no labels")


class Single(Piece):
    """Allows one pass only."""

    name = "single"
    single_pass = True


@pytest.mark.parametrize("name", [n for n, k in PIECES.items() if overrides(k(), "perturb")])
def test_a_second_pass_is_refused_where_one_is_allowed(name):
    line = refusal(compose, [PIECES[name](), Single()])
    assert line.startswith(f"single and {name} cannot be combined: {name} passes every batch")
