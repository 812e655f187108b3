"""The size of a client's update, and what happens to one that is too large."""

import torch

from fedfm.config.deployment import Deployment
from fedfm.core import trees
from fedfm.core.errors import UserError
from fedfm.core.trees import Tree

UPDATE = ("change", "buffers", "pieces")
"""The parts of an answer that are bounded together, as [privacy] bounds them."""


class TooLarge(UserError):
    """An update over the limit, which is left out."""


def measure_update(answer: Tree) -> float:
    """Return the L2 norm of the update in a client's answer.

    Its parts are the model's change as the client made it (`change` is weighted), the buffers'
    change, and what the method's pieces send, without single numbers.
    """
    weights = {"change": answer.get("weight"), "buffers": answer.get("samples")}
    squares = 0.0
    for part in UPDATE:
        for leaf in _leaves(answer.get(part, {})):
            weight = weights.get(part)
            size = float(torch.linalg.vector_norm(leaf, dtype=torch.float64))
            squares += (size if weight is None else size / float(weight)) ** 2
    return float(squares**0.5)


def _leaves(tree: Tree) -> list[torch.Tensor]:
    return [leaf for leaf in trees.leaves(tree) if leaf.is_floating_point() and leaf.numel() > 1]


def limit_update(answer: Tree, deployment: Deployment) -> tuple[Tree, str]:
    """Return an answer whose update is within `max_norm`, and what was done, if anything.

    Raise `TooLarge` if the update is over the limit and must be left out.
    """
    limit = deployment.max_norm
    if not limit or not answer.keys() & {*UPDATE}:
        return answer, ""
    norm = measure_update(answer)
    if norm <= limit:
        return answer, ""
    reason = f"its update has norm {norm:.4g}, deployment.max_norm is {limit:g}"
    if deployment.over_norm == "drop":
        raise TooLarge(reason)
    return _scale(answer, limit / norm), f"{reason}: the update is scaled down"


def _scale(answer: Tree, factor: float) -> Tree:
    def scale(leaf: torch.Tensor) -> torch.Tensor:
        large = leaf.is_floating_point() and leaf.numel() > 1
        return (leaf.double() * factor).to(leaf.dtype) if large else leaf

    return answer | {part: trees.tree_map(scale, answer[part]) for part in UPDATE if part in answer}
