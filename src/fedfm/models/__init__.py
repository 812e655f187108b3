"""Models: modules whose forward(x [B, ...]) returns (features [B, d], logits [B, C]).

`build` makes one by name. Adapt your own network with `WithFeatures` or `BodyAndHead`. Add it to
`MODELS` to use it by name: a callable (shape, classes, *, option=default, ...) -> such a module. A
callable with a keyword-only parameter `vocabulary` gets the number of token ids.
"""

import copy
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedfm.core.errors import UserError, require, unknown_name_error
from fedfm.core.inputs import (
    InputTree,
    call_network,
    describe_inputs,
    holds_ids,
    input_leaves,
    to_like,
)
from fedfm.models.adapter import BodyAndHead, WithFeatures, export_state_dict
from fedfm.models.forward_checks import check_forward, check_tensors
from fedfm.models.resnet import ResNet18, ResNet50
from fedfm.models.small import MLP, SmallCNN
from fedfm.models.transformer import Transformer

__all__ = [
    "MLP",
    "MODELS",
    "BodyAndHead",
    "ResNet18",
    "ResNet50",
    "SmallCNN",
    "Transformer",
    "WithFeatures",
    "build",
    "export_state_dict",
]

MODELS: dict[str, Callable[..., nn.Module]] = {
    "resnet18": ResNet18,
    "resnet50": ResNet50,
    "cnn": SmallCNN,
    "mlp": MLP,
    "transformer": Transformer,
}
"""The models by name."""
VOCABULARY = "vocabulary"
"""The parameter of models for token ids that the data give; not an option."""


class Described(Protocol):
    """Data by what a model needs to know: the form of inputs, the classes, the vocabulary."""

    @property
    def shape(self) -> Any:
        """The shape of one input."""
        ...

    @property
    def classes(self) -> Sequence[str]:
        """The names of the classes."""
        ...

    @property
    def vocabulary(self) -> Sequence[str]:
        """The words by token id, if inputs are token ids."""
        ...


def build_for(data: Described, name: str, **options: object) -> nn.Module:
    """Return a new model for such data, as `build` does."""
    check_options(name, options)
    if needs_vocabulary(name):
        options[VOCABULARY] = len(data.vocabulary)
    return build(name, shape=data.shape, classes=len(data.classes), **options)


def build(name: str, *, shape: Any, classes: int, **options: object) -> nn.Module:
    """Return a new model with weights from torch's random state.

    Args:
        name: One of `MODELS`.
        shape: The shape of one input, without the batch.
        classes: C, the number of classes.
        options: The options of that model, as in `[model]` of a config; for a model for token ids
            also `vocabulary`, their number.

    Returns:
        A module with forward(x [B, *shape]) -> (features [B, d], logits [B, C]).

    Examples:
        >>> import torch
        >>> from fedfm import models
        >>> model = models.build("mlp", shape=(1, 8, 8), classes=10, hidden=[32])
        >>> features, logits = model(torch.zeros(5, 1, 8, 8))
        >>> features.shape, logits.shape
        (torch.Size([5, 32]), torch.Size([5, 10]))
    """
    of_data = [VOCABULARY] if name in MODELS and needs_vocabulary(name) else []
    check_options(name, [option for option in options if option not in of_data])
    return MODELS[name](shape, classes, **options)


def check_options(name: str, options: Iterable[str]) -> None:
    """Refuse an unknown model, and options that it does not have."""
    known = option_names(name)
    for option in options:
        if option not in known:
            reason = unknown_name_error("option", option, known)
            raise UserError(f"model '{name}': {reason} (its options: {', '.join(known)})")


def needs_vocabulary(name: str) -> bool:
    """Return whether a model is for token ids and gets their number."""
    return VOCABULARY in inspect.signature(MODELS[name]).parameters


def option_names(name: str) -> list[str]:
    """Return the options of a model: its keyword-only parameters, without what the data give."""
    return [parameter.name for parameter in _options(name)]


def default_options(name: str) -> dict[str, Any]:
    """Return the options of the model `name` that have a default, as TOML has them."""
    options: dict[str, Any] = {}
    for parameter in _options(name):
        default = parameter.default
        if default is None:  # a class may have its own: ResNet18.default_stem
            default = getattr(MODELS[name], f"default_{parameter.name}", None)
        if default is not None and default is not parameter.empty:
            options[parameter.name] = list(default) if isinstance(default, tuple) else default
    return options


def _options(name: str) -> list[inspect.Parameter]:
    if name not in MODELS:
        raise unknown_name_error("model", name, MODELS)
    parameters = inspect.signature(MODELS[name]).parameters.values()
    named = [parameter for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    return [parameter for parameter in named if parameter.name != VOCABULARY]


def count_parameters(model: nn.Module) -> int:
    """Count the parameters, trainable or not, without buffers such as running means."""
    return sum(parameter.numel() for parameter in model.parameters())


def check_model(model: nn.Module, example: InputTree, classes: int) -> int:
    """Refuse a model that cannot be trained on such inputs; return d, its number of features."""
    name = type(model).__name__
    require(
        all(p.dtype in (torch.float32, torch.float64) for p in model.parameters()),
        f"the weights of {name} must be float32 or float64; for faster products set precision",
    )
    require(
        any(p.requires_grad for p in model.parameters()),
        f"{name} has no trainable parameter: freeze fewer layers, or set requires_grad=True",
    )
    check_tensors(model)
    stateless = [
        path
        for path, layer in model.named_modules()
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and not layer.track_running_stats
    ]
    require(
        not stateless,
        f"{', '.join(stateless[:3])} of {name}: without running statistics, a sample's output "
        "depends on the rest of its batch: use track_running_stats=True or group norm",
    )
    require(classes > 1, "the data have only one class: there is nothing to learn")
    features, logits = _outputs(model, example)
    outputs = logits.shape[1]
    require(
        outputs == classes, f"{name} has {outputs} outputs, but the data have {classes} classes"
    )
    check_forward(model, example)
    return features.shape[1]


def feature_dim(model: nn.Module, example: InputTree | None = None) -> int:
    """Return d, the number of features; without inputs the head must be a linear layer."""
    if example is not None:
        return _outputs(model, example)[0].shape[1]
    head = model.get_submodule(getattr(model, "head_name", ""))
    if isinstance(head, nn.Linear):
        return head.in_features
    raise UserError(
        f"cannot tell the number of features of {type(model).__name__} from its head: "
        "give feature_dim some inputs"
    )


def _outputs(model: nn.Module, example: InputTree) -> tuple[Tensor, Tensor]:
    """Return (features [M, d], logits [M, C]) of inputs [M, ...]; the model is not changed."""
    name = type(model).__name__
    try:
        with torch.no_grad():
            outputs = _call_copy(model, example)
    except UserError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        form = describe_inputs(example)
        reason = _explain_ids(example) if isinstance(error, IndexError) else str(error)
        raise UserError(f"{name} does not take inputs of {form}: {reason}") from error
    pair = outputs if isinstance(outputs, tuple) else ()
    require(
        [isinstance(output, Tensor) and output.ndim for output in pair] == [2, 2],
        f"{name}.forward must return (features [B, d], logits [B, C]); "
        "WithFeatures(model, head=...) adapts a network that returns logits only",
    )
    return pair[0], pair[1]


def _call_copy(model: nn.Module, inputs: InputTree) -> Any:
    """Call a copy of the model in evaluation mode, token ids on the CPU.

    An id outside of an embedding would end all work on a GPU.
    """
    like = next(model.parameters(), torch.empty(0))
    if like.is_cuda and any(map(holds_ids, input_leaves(inputs))):
        copied, like = copy.deepcopy(model).cpu().eval(), like.cpu()
    else:
        copied = copy.deepcopy(model, {id(p): p for p in model.parameters()}).eval()
    return call_network(copied, to_like(inputs, like))


def _explain_ids(inputs: InputTree) -> str:
    """Describe ids that are outside of an embedding."""
    ids = [leaf for leaf in input_leaves(inputs) if holds_ids(leaf)]
    low, high = min(int(leaf.min()) for leaf in ids), max(int(leaf.max()) for leaf in ids)
    return (
        f"the ids run from {low} to {high}, which is outside of its embedding: make the embedding "
        "larger, or give unknown words the id of a known one"
    )
