import re
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from fedfm.engine.kernels import convolution
from fedfm.engine.kernels.convolution import ConvolutionShape, Tiles, branch_conv2d, stacked_conv2d

# clients, batch, inputs, outputs, map, kernel, stride, padding
SHAPES = {
    "plain": (2, 2, 16, 16, (3, 4), (3, 3), (1, 1), (1, 1)),
    "few inputs": (1, 2, 3, 20, (5, 7), (3, 3), (1, 1), (1, 1)),
    "stem": (1, 2, 3, 16, (7, 7), (7, 7), (2, 2), (3, 3)),
    "odd channels": (2, 5, 20, 5, (3, 4), (3, 3), (1, 1), (0, 1)),
    "stride": (3, 2, 16, 32, (4, 4), (3, 3), (2, 2), (1, 1)),
    "stride on odd maps": (1, 3, 16, 5, (5, 7), (3, 3), (2, 2), (1, 1)),
    "pointwise": (3, 5, 20, 16, (2, 2), (1, 1), (1, 1), (0, 0)),
    "shortcut": (2, 3, 16, 20, (5, 4), (1, 1), (2, 2), (0, 0)),
    "tall kernel": (2, 3, 5, 16, (5, 3), (3, 1), (2, 1), (2, 0)),
    "uneven strides": (2, 2, 16, 16, (4, 7), (3, 3), (3, 2), (3, 2)),
    "stride beyond kernel": (1, 2, 16, 3, (5, 5), (2, 2), (3, 3), (0, 0)),
    "only the centre is alive": (3, 4, 16, 32, (1, 1), (3, 3), (1, 1), (1, 1)),
    "four taps are alive": (2, 4, 16, 16, (2, 2), (3, 3), (2, 2), (1, 1)),
    "nine taps, four for each": (2, 40, 16, 16, (2, 2), (3, 3), (1, 1), (1, 1)),
    "padding sees nothing": (2, 3, 16, 16, (2, 1), (1, 1), (2, 1), (3, 2)),
}


def arguments(clients, batch, inputs, outputs, space, kernel, *, dtype=torch.float32):
    torch.manual_seed(0)
    x = torch.randn(clients * batch, *space, inputs).to(dtype).movedim(-1, 1)
    weight = torch.randn(clients, outputs, *kernel, inputs).to(dtype).movedim(-1, 2)
    return x.requires_grad_(), weight.requires_grad_()


def client_by_client(x, weight, stride, padding):
    """The same by torch, in double precision."""
    each = zip(x.double().chunk(len(weight)), weight.double(), strict=True)
    return torch.cat([F.conv2d(a, b, stride=stride, padding=padding) for a, b in each])


def compare(x, weight, stride, padding, tolerance=1e-5):
    y, expected = (f(x, weight, stride, padding) for f in (stacked_conv2d, client_by_client))
    assert y.shape == expected.shape
    assert y.dtype == x.dtype
    assert y.movedim(1, -1).is_contiguous()
    slope = torch.randn(expected.shape).to(x.dtype)
    found = torch.autograd.grad(y, (x, weight), slope)
    wanted = torch.autograd.grad(expected, (x, weight), slope.double())
    for mine, theirs in zip((y, *found), (expected, *wanted), strict=True):
        close = tolerance * float(theirs.detach().abs().max())
        torch.testing.assert_close(mine.double(), theirs.double(), rtol=0, atol=close)
    return found


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_every_pass_is_torchs_for_each_client(shape):
    x, weight = arguments(*shape[:-2])
    stride, padding = shape[-2:]
    _, slope = compare(x, weight, stride, padding)
    assert slope.movedim(2, -1).is_contiguous()


@pytest.mark.parametrize("shape", ["plain", "stride", "few inputs", "pointwise"])
def test_gradients_of_another_branch_are_added(shape):
    x, weight = arguments(*SHAPES[shape][:-2])
    bias = torch.randn(weight.shape[:2], requires_grad=True)
    settings, leaves = SHAPES[shape][-2:], (x, weight, bias)
    y, same = branch_conv2d(x, weight, *settings, bias)
    shifts = bias.repeat_interleave(len(x) // len(weight), 0)[..., None, None]
    expected = client_by_client(x, weight, *settings) + shifts
    slope = torch.randn_like(y)
    found = torch.autograd.grad((slope * y).sum() + (same**2).sum(), leaves)
    wanted = torch.autograd.grad((slope * expected).sum() + (x**2).sum(), leaves)
    assert torch.equal(same, x)
    for mine, theirs in zip((y, *found), (expected, *wanted), strict=True):
        torch.testing.assert_close(mine.double(), theirs.double(), rtol=1e-4, atol=1e-4)


def test_half_precision_sums_in_float32():
    # The interpreter multiplies bfloat16 as integers, so that float16 stands in for it.
    x, weight = arguments(2, 3, 32, 16, (2, 3), (3, 3), dtype=torch.float16)
    compare(x, weight, (1, 1), (1, 1), tolerance=2e-3)


@pytest.mark.parametrize("channels", [16, 3])
def test_one_tap_in_half_precision_is_a_product(channels, monkeypatch):
    monkeypatch.setattr(convolution, "device", None)  # no kernel of ours runs
    x, weight = arguments(3, 4, channels, 20, (3, 2), (1, 1), dtype=torch.bfloat16)
    compare(x, weight, (1, 1), (0, 0), tolerance=1e-2)


def test_other_layouts_are_right_too():
    x, weight = arguments(2, 2, 16, 16, (2, 2), (3, 3))
    compare(
        x.detach().contiguous().requires_grad_(),
        weight.detach().contiguous().requires_grad_(),
        (1, 1),
        (1, 1),
    )


def test_taps_on_padding_have_no_gradient():
    x, weight = arguments(2, 2, 16, 16, (1, 1), (3, 3))
    (slope,) = torch.autograd.grad(stacked_conv2d(x, weight, (1, 1), (1, 1)).sum(), weight)
    alive = torch.zeros(3, 3, dtype=torch.bool)
    alive[1, 1] = True
    assert not slope[..., ~alive].any()
    assert slope[..., alive].all()


def test_an_input_without_gradient_gets_none(monkeypatch):
    x, weight = arguments(2, 2, 3, 16, (3, 3), (3, 3))
    monkeypatch.setattr(convolution, "input_gradient", lambda *_: pytest.fail("not needed"))
    y = stacked_conv2d(x.detach(), weight, (1, 1), (1, 1))
    (slope,) = torch.autograd.grad(y.sum(), weight)
    assert slope.shape == weight.shape


@pytest.mark.parametrize(
    "cut",
    [Tiles(16, 16, 16), Tiles(16, 32, 16, splits=3), Tiles(32, 16, 32, splits=7)],
    ids=str,
)
def test_every_cut_gives_the_same(cut):
    (x, weight), stride, padding = arguments(1, 18, 16, 20, (2, 3), (3, 3)), (2, 1), (1, 1)
    layer = ConvolutionShape.of(x, weight, stride, padding)
    y = client_by_client(x, weight, stride, padding)
    slope = torch.randn(y.shape)
    wanted = torch.autograd.grad(y, (x, weight), slope.double())
    pixels, filters = (a.detach().movedim(c, -1) for a, c in ((x, 1), (weight, 2)))
    slope = slope.movedim(1, -1).contiguous()
    found = (
        convolution.forward(pixels, filters, layer, cut).movedim(-1, 1),
        convolution.input_gradient(slope, filters, layer, cut=cut).movedim(-1, 1),
        convolution.weight_gradient(pixels, slope, len(weight), layer, cut).movedim(-1, 2),
    )
    for mine, theirs in zip(found, (y, *wanted), strict=True):
        torch.testing.assert_close(mine.double(), theirs.double(), rtol=1e-5, atol=1e-4)


def test_a_clients_results_do_not_depend_on_its_company():
    x, weight = arguments(3, 2, 16, 16, (2, 2), (3, 3))
    for s in (slice(3), slice(1)):
        rows, filters = x[: s.stop * 2].detach().requires_grad_(), weight[s]
        y = stacked_conv2d(rows, filters, (1, 1), (1, 1))
        slopes = torch.autograd.grad(y.square().sum(), (rows, filters))
        results = [y[:2], slopes[0][:2], slopes[1][:1]]
        if s.stop == 3:
            together = results
    assert all(torch.equal(a, b) for a, b in zip(together, results, strict=True))


def test_unfit_arguments_are_refused():
    x, weight = arguments(2, 3, 4, 4, (3, 3), (3, 3))
    for bad, fits in (
        (x[:5], weight),
        (x[:, :3], weight),
        (x.half(), weight),
        (x, weight[:, :, 1:]),
    ):
        shapes = (re.escape(str(tuple(tensor.shape))) for tensor in (fits, bad))
        with pytest.raises(ValueError, match=".*".join([*shapes, str(bad.dtype)])):
            stacked_conv2d(bad, fits, (1, 1), (1, 1))
    with pytest.raises(ValueError, match=r"3x3.*1x"):
        stacked_conv2d(x[..., :1, :], weight, (1, 1), (0, 0))


def test_larger_results_have_larger_tiles():
    cuts = [convolution.tiles(rows, 128, 64) for rows in (10, 64, 1024, 65536)]
    areas = [cut.rows * cut.columns for cut in cuts]
    assert all(a <= b for a, b in pairwise(areas))
    assert (cuts[-1].rows, cuts[-1].columns) == (128, 128)


def test_long_sums_of_small_results_are_shared():
    few = ConvolutionShape(8, 8, 64, 8, 8, 64, 3, 3, 1, 1, 1, 1)
    none = ConvolutionShape(1, 1, 512, 1, 1, 512, 3, 3, 1, 1, 1, 1)
    assert convolution.weight_tiles(few, 64, torch.bfloat16).splits > 1
    assert convolution.weight_tiles(none, 64, torch.bfloat16).splits == 1
