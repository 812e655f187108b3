import pytest
import torch
from torch import Tensor, nn

from fedfm.engine.stacking import mapping
from fedfm.engine.stacking.mapping import ClientMap
from fedfm.engine.stacking.unbinding import unbind

ORDERS = {"as in memory": (0, 1, 2, 3), "first": (2, 0, 3, 1), "last": (3, 1, 0, 2)}


@pytest.mark.parametrize("dim", [0, 2, -1])
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_parts_and_gradients_are_torchs(order, dim):
    torch.manual_seed(0)
    memory = torch.randn(2, 5, 3, 4, dtype=torch.float64)
    x = memory.permute(order).detach().requires_grad_()
    weights = torch.randn_like(torch.stack(x.unbind(dim)))
    ends = []
    for take_apart in (unbind, Tensor.unbind):
        parts = torch.stack([part.sin() for part in take_apart(x, dim)])
        ends.append(torch.autograd.grad(parts, x, weights)[0])
    assert torch.equal(*ends)
    back = [order.index(axis) for axis in range(4)]
    assert ends[0].permute(back).is_contiguous(), "nothing has to be moved before it"


def test_parts_that_are_not_used_get_zeros():
    x = torch.randn(3, 2, requires_grad=True)
    (grad,) = torch.autograd.grad(unbind(x)[1].sum(), x)
    assert torch.equal(grad, torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]))


def graph(node) -> set[str]:
    """Return the names of the operations before a node of autograd's graph."""
    return {node.name()}.union(*(graph(before) for before, _ in node.next_functions if before))


class Splitting(nn.Module):
    """Takes a product apart by unpacking, a constant by `torch.unbind`."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        one, other, third = self.inner(x).unflatten(-1, (3, 2)).movedim(-2, 0)
        low, high = torch.unbind(torch.arange(4.0).view(2, 2), dim=1)
        (again,) = torch.unbind(other.unsqueeze(-1), -1)
        return one * third + again * (low + high)


def test_maps_take_tensors_apart_for_all_clients_at_once(monkeypatch):
    torch.manual_seed(0)
    x, ends = torch.randn(2, 5, 4), []
    weights = [torch.randn(2, 6, 4, requires_grad=True), torch.randn(2, 6, requires_grad=True)]
    for unbinds in (False, True):
        monkeypatch.setattr(mapping, "runs_kernels", lambda _, unbinds=unbinds: unbinds)
        module = Splitting()
        mapped = ClientMap(module, [], [], [])
        with mapped.slots.hold(weights):
            y = mapped(x)
            assert ("_UnbindBackward" in graph(y.grad_fn)) == unbinds
            ends.append([y, *torch.autograd.grad(y.sin().sum(), weights)])
        assert y.shape == (2, 5, 2)
    assert all(torch.allclose(one, other) for one, other in zip(*ends, strict=True))
