"""Fused operations that draw random numbers run in their plain forms, others stay as they are."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fedfm.engine.plain_operations import plain_operations


class Watch(TorchDispatchMode):
    """Notes with every operation whether cuDNN may be used."""

    def __init__(self) -> None:
        super().__init__()
        self.enabled: set[bool] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.enabled.add(torch.backends.cudnn.enabled)
        return func(*args, **(kwargs or {}))


def run(layer: nn.Module, inputs: Tensor) -> set[bool]:
    torch.manual_seed(0)
    with plain_operations(), Watch() as watch:
        layer(inputs)
    return watch.enabled


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_recurrent_layers_run_without_cudnn_if_they_drop(kind, dropout):
    enabled = run(kind(4, 3, 2, dropout=dropout, batch_first=True), torch.randn(2, 5, 4))
    assert (False in enabled) == (dropout > 0)
    assert torch.backends.cudnn.enabled


def test_cudnn_is_allowed_again_after_a_problem():
    layer = nn.LSTM(4, 3, 2, dropout=0.5)
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(5, 2, 4), torch.tensor([5, 3]))
    with plain_operations():
        layer(packed)
        layer.weight_hh_l1 = nn.Parameter(torch.zeros(1, 1))
        with pytest.raises(RuntimeError):
            layer(packed)
    assert torch.backends.cudnn.enabled


def test_other_layers_keep_cudnn():
    assert run(nn.Conv2d(3, 4, 3), torch.randn(1, 3, 5, 5)) == {True}


def test_attention_is_made_of_products():
    before = torch.backends.cuda.flash_sdp_enabled()
    with plain_operations():
        assert not torch.backends.cuda.flash_sdp_enabled()
        assert torch.backends.cuda.math_sdp_enabled()
    assert torch.backends.cuda.flash_sdp_enabled() == before
