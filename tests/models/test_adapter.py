"""A user's own network, adapted: the features are the input of the head that was named."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from fedfm import models
from fedfm.core.errors import UserError
from fedfm.models.adapter import BodyAndHead, WithFeatures, export_state_dict


class Net(nn.Module):
    """A network as users write them: logits [B, 3] of images [B, 1, 4, 4], and ways to go wrong."""

    def __init__(self, way: str = "plain") -> None:
        super().__init__()
        self.way = way
        self.conv = nn.Conv2d(1, 5, 3)
        self.tail = nn.Sequential(nn.Linear(20, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 3))
        self.spare = nn.Linear(1, 1)

    def forward(self, x: Tensor) -> object:
        logits = self.tail(torch.relu(self.conv(x)).flatten(1))
        outputs = {"plain": logits, "list": [logits], "flat": logits[:, 0], "cut": logits[1:]}
        outputs["twice"] = self.tail(torch.zeros(2, 20)) if self.way == "twice" else None
        if self.way == "error":
            raise KeyError("mine")
        return outputs[self.way]


class Keyword(nn.Module):
    """Calls its head by keyword, on features that are not flat."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(input=x.reshape(-1, 4, 2)).sum(1)
        return logits


@pytest.fixture
def x() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(2, 1, 4, 4)


def test_features_are_the_input_of_the_head_and_logits_are_untouched(x: Tensor) -> None:
    net = Net()
    features, logits = WithFeatures(net.eval(), "tail.3")(x)
    assert features.shape == (2, 7)
    assert torch.equal(logits, net(x))
    torch.testing.assert_close(net.tail[3](features), logits)


def test_another_head_gives_other_features(x: Tensor) -> None:
    net = Net()
    features, _ = WithFeatures(net, "tail.0")(x)
    assert torch.equal(features, torch.relu(net.conv(x)).flatten(1))


def test_features_carry_gradients(x: Tensor) -> None:
    net = Net()
    torch.autograd.backward(WithFeatures(net, "tail.3")(x)[0].square().sum())
    assert net.conv.weight.grad is not None
    assert bool(net.conv.weight.grad.any())
    assert net.tail[3].weight.grad is None


def test_a_head_called_by_keyword_on_tokens_gives_flat_features() -> None:
    tokens = torch.randn(3, 8)
    features, logits = WithFeatures(Keyword(), "fc")(tokens)
    assert torch.equal(features, tokens)
    assert logits.shape == (3, 3)


def test_a_head_swapped_later_is_the_one_that_counts(x: Tensor) -> None:
    net = Net().eval()
    model = WithFeatures(net, "tail.3")
    expected = model(x)[0]
    net.tail[3] = nn.Linear(7, 9)
    features, logits = model(x)
    assert torch.equal(features, expected)
    assert logits.shape == (2, 9)


@pytest.mark.parametrize("way", ["plain", "error"])
def test_no_hook_outlives_a_call(x: Tensor, way: str) -> None:
    net = Net(way)
    if way == "error":
        with pytest.raises(KeyError, match="mine"):
            WithFeatures(net, "tail.3")(x)
    else:
        WithFeatures(net, "tail.3")(x)
    assert [name for name, part in net.named_modules() if part._forward_pre_hooks] == []


def test_a_copy_stands_on_its_own(x: Tensor) -> None:
    model = WithFeatures(Net(), "tail.3").eval()
    before = model(x)
    copied = copy.deepcopy(model)
    nn.init.zeros_(model.get_submodule("module.conv").get_parameter("weight"))
    assert all(map(torch.equal, copied(x), before))
    assert not torch.equal(model(x)[0], before[0])


def test_exported_weights_load_into_the_users_own_module() -> None:
    model, own = WithFeatures(Net(), "tail.3"), Net()
    own.load_state_dict(export_state_dict(model), strict=True)
    assert torch.equal(own.conv.weight, model.state_dict()["module.conv.weight"])
    assert list(export_state_dict(own)) == list(own.state_dict())


def test_split_flattens_the_body_and_applies_the_head(x: Tensor) -> None:
    body, head = nn.Conv2d(1, 5, 3), nn.Linear(20, 3)
    features, logits = BodyAndHead(body, head)(x)
    assert torch.equal(features, body(x).flatten(1))
    assert torch.equal(logits, head(features))


@pytest.mark.parametrize(("head", "dim"), [("tail.3", 7), ("tail.0", 20)])
def test_feature_dim_of_an_adapted_model(head: str, dim: int) -> None:
    model = WithFeatures(Net(), head)
    assert models.feature_dim(model) == dim
    assert models.feature_dim(model, torch.zeros(1, 1, 4, 4)) == dim


def test_feature_dim_is_measured_where_the_head_sees_tokens() -> None:
    assert models.feature_dim(WithFeatures(Keyword(), "fc"), torch.zeros(1, 8)) == 8


@pytest.mark.parametrize(
    ("head", "pattern"),
    [
        ("tail.33", r"Net 'tail\.33': did you mean 'tail\.3'\?"),
        ("", r"\bspare, tail\.0, tail\.3$"),
        ("zzz", r"'zzz'.*\bspare, tail\.0, tail\.3$"),
    ],
)
def test_a_head_that_does_not_exist_is_refused(head: str, pattern: str) -> None:
    with pytest.raises(UserError, match=pattern):
        WithFeatures(Net(), head)


def test_a_shared_head_is_known_by_each_of_its_names(x: Tensor) -> None:
    net = Net()
    net.alias = net.tail[3]
    assert WithFeatures(net, "alias")(x)[0].shape == (2, 7)


@pytest.mark.parametrize(
    ("way", "head", "pattern"),
    [
        ("plain", "spare", r"Net\.forward never.*'spare'"),
        ("twice", "tail.3", r"Net\.forward.*'tail\.3'.*\b2\b"),
        ("list", "tail.3", r"\[B, C\].*\[2, C\].*\blist\b"),
        ("flat", "tail.3", r"\[2, C\].*\(2,\)"),
        ("cut", "tail.3", r"\[2, C\].*\(1, 3\)"),
    ],
)
def test_a_forward_that_gives_no_features_or_logits_is_refused(
    x: Tensor, way: str, head: str, pattern: str
) -> None:
    with pytest.raises(UserError, match=pattern):
        WithFeatures(Net(way), head)(x)


class Classifier(nn.Module):
    """A network that is called by keywords or positions, and returns an object with logits."""

    def __init__(self, returns: str = "object") -> None:
        super().__init__()
        self.tokens, self.classifier = nn.Embedding(10, 4), nn.Linear(4, 3)
        self.returns = returns

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> object:
        weights = attention_mask.unsqueeze(-1).float()
        pooled = (self.tokens(input_ids) * weights).sum(1) / weights.sum(1)
        logits = self.classifier(pooled)
        forms = {"object": SimpleNamespace(logits=logits), "mapping": {"logits": logits}}
        return forms.get(self.returns, logits)


@pytest.mark.parametrize("returns", ["object", "mapping", "tensor"])
@pytest.mark.parametrize("named", [True, False])
def test_logits_are_found_in_what_a_network_returns(returns: str, named: bool) -> None:
    inputs = {
        "input_ids": torch.arange(6).view(2, 3),
        "attention_mask": torch.ones(2, 3, dtype=torch.bool),
    }
    model = WithFeatures(Classifier(returns), "classifier")
    features, logits = model(**inputs) if named else model(*inputs.values())
    torch.testing.assert_close(model.get_submodule("module.classifier")(features), logits)
    example = inputs if named else tuple(inputs.values())
    assert models.check_model(model, example, classes=3) == 4


def test_a_keyword_that_the_network_lacks_is_refused_in_a_line() -> None:
    model = WithFeatures(Classifier(), "classifier")
    ids = {"input_ids": torch.arange(6).view(2, 3), "mask": torch.ones(2, 3)}
    with pytest.raises(UserError, match=r"WithFeatures.*unexpected keyword argument 'mask'"):
        models.check_model(model, ids, classes=3)


def test_a_head_of_several_layers_on_tokens_is_refused_with_its_last_layer() -> None:
    class Pool(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense, self.out = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.out(self.dense(tokens[:, 0]))

    network = nn.Sequential(nn.Embedding(10, 4), Pool())
    ids = torch.arange(6).view(2, 3)
    with pytest.raises(UserError, match=r'3 vectors for each sample.*head="1\.out"'):
        WithFeatures(network, "1")(ids)
    assert WithFeatures(network, "1.out")(ids)[0].shape == (2, 4)
