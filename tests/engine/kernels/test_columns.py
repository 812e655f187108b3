import pytest
import torch

from fedfm.engine.kernels.columns import scale_columns, sum_columns


@pytest.mark.parametrize("shape", [(2, 3, 5), (3, 700, 20), (2, 4, 3, 130), (1, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_and_their_gradients_are_torchs(shape, dtype):
    torch.manual_seed(0)
    x = torch.randn(shape).to(dtype).requires_grad_()
    scale = torch.randn(shape[0], shape[-1], requires_grad=True)
    y = scale_columns(x, scale)
    expected = x.double() * scale.double().view(shape[0], *[1] * (len(shape) - 2), shape[-1])
    assert y.dtype == torch.float32
    slope = torch.randn(shape)
    found = torch.autograd.grad(y, (x, scale), slope)
    wanted = torch.autograd.grad(expected, (x, scale), slope.double())
    loose = 1e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(y.double(), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found[0].double(), wanted[0].double(), rtol=loose, atol=1e-6)
    torch.testing.assert_close(found[1].double(), wanted[1].double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(6, 5), (3 * 700, 20), (4, 3, 130)])
def test_sums_of_columns(shape):
    torch.manual_seed(0)
    x = torch.randn(shape)
    clients = 2 if shape[0] % 2 == 0 else 3
    expected = x.double().unflatten(0, (clients, -1)).flatten(1, -2).sum(1)
    torch.testing.assert_close(sum_columns(x, clients).double(), expected, rtol=1e-5, atol=1e-4)


def test_a_client_does_not_depend_on_its_company():
    torch.manual_seed(0)
    x = torch.randn(3, 700, 20)
    assert torch.equal(sum_columns(x, 3)[1:2], sum_columns(x[1:2].contiguous(), 1))
