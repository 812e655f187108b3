import pytest
import torch
import torch.nn.functional as F

from fedfm.engine.kernels.pooling import max_pool2d


@pytest.mark.parametrize("window", [(3, 2, 1), (2, 2, 0), (3, 1, 1), (2, 3, 0), (5, 2, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_and_gradients_are_torchs(window, dtype):
    torch.manual_seed(0)
    few_values = torch.randint(0, 4, (3, 9, 12, 5))  # many windows have several maxima
    x = few_values.to(dtype).movedim(-1, 1).requires_grad_()
    y, expected = max_pool2d(x, *window), F.max_pool2d(x, *window)
    assert y.movedim(1, -1).is_contiguous()
    assert torch.equal(y, expected)
    slope = torch.randint(-3, 4, y.shape).to(dtype)
    (found,), (wanted,) = (torch.autograd.grad(each, x, slope) for each in (y, expected))
    assert torch.equal(found, wanted)


def test_refuses_a_padding_larger_than_half_a_window():
    with pytest.raises(ValueError, match="padding"):
        max_pool2d(torch.zeros(1, 1, 4, 4), kernel=3, stride=2, padding=2)
