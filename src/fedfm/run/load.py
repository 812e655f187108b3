"""The model of a finished run, ready to use: `fedfm.load`."""

import copy
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from fedfm import models
from fedfm.config import Config, load_config
from fedfm.core.checkpoint import Damaged, load_checkpoint
from fedfm.core.client_states import OnDisk
from fedfm.core.errors import UserError, require
from fedfm.core.trees import Tree
from fedfm.data.new_samples import NewSamples, read_new_images, read_new_rows, read_new_texts
from fedfm.data.split import Split
from fedfm.engine.networks import list_untrained_tensors, trainable_parameters
from fedfm.methods.base import Model
from fedfm.methods.composition import has_own_part
from fedfm.rounds.group import personal_models
from fedfm.run.classifier import Classifier
from fedfm.run.description import DataDescription
from fedfm.run.folder import CHECKPOINT
from fedfm.run.prepare import load_data

ENROLMENT = "federation.json"
"""The file by which the folder of a deployed client is known."""


def load(
    run: Path | str, *, client: int | str | None = None, model: nn.Module | None = None
) -> Classifier:
    """Load the model of a finished run, with its normalisation and its classes.

    Args:
        run: The folder of the run, or of a client in a deployment.
        client: Whose own model to load, by number or name, where clients have models of their own;
            by default the global model.
        model: The network, if the run was given one in Python; it is not changed.

    Returns:
        The model of the reported round, on the CPU; with `client`, that client's own model after
        the last round.

    Raises:
        UserError: If the folder holds no finished run, or the network is another one.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> import fedfm
        >>> few = fedfm.Training(clients=3, rounds=2, epochs=1)
        >>> with TemporaryDirectory() as folder:
        ...     run = f"{folder}/run"
        ...     _ = fedfm.simulate("mlp", "digits", "fedavg", training=few, out=run)
        ...     classifier = fedfm.load(run)
        >>> images = fedfm.data.load("digits").test.inputs
        >>> classifier.predict(images).shape
        torch.Size([359, 10])
    """
    folder = Path(run).expanduser()
    config = _load_config(folder)
    path = folder / "model.safetensors"
    require(path.is_file(), f"the run in {folder} is not finished: resume it first")
    data = DataDescription.load(folder)
    tensors = _read(path)
    method = config.composed
    clients_folder = (folder / ENROLMENT).exists()  # of a deployment: the model is the client's
    require(
        client is not None or clients_folder or not any(map(has_own_part, method.pieces)),
        f"{method.name}: clients keep a part of the model, so there is no model for all of them: "
        "load that of one client",
    )
    if client is not None:
        tensors = load_own_tensors(folder, config, _number(client, config, data))
    network = copy.deepcopy(model) if model is not None else _build(folder, config, data)
    return Classifier(fill(network, tensors, path).eval(), data)


def _load_config(folder: Path) -> Config:
    recorded = folder / "config.toml"
    require(recorded.is_file(), f"{folder} is not the folder of a run: it has no config.toml")
    try:
        return load_config(str(recorded))
    except UserError as problem:
        raise UserError(f"{recorded} is no config here: {problem}") from problem


def _read(path: Path) -> Tree:
    try:
        tensors: Tree = load_file(path)
    except (OSError, SafetensorError) as problem:
        raise Damaged(path, problem) from problem
    return tensors


def _number(client: int | str, config: Config, data: DataDescription) -> int:
    """Return the number of a client that is given by its number or its name."""
    names, total = data.clients, len(data.clients) or config.training.clients
    if client in names:
        return names.index(str(client))
    known = ", ".join(names[:8]) if names else f"0 to {total - 1}"
    fits = str(client).isdecimal() and int(client) < total
    require(fits, f"there is no client '{client}' in this run: its clients are {known}")
    return int(client)


def load_own_tensors(folder: Path, config: Config, client: int) -> Tree:
    """Return the parameters and buffers of a client's own model, after the last round."""
    require(
        config.composed.keeps_models,
        f"{config.composed.name} has one model for all clients: load it without a client",
    )
    checkpoint = load_checkpoint(folder / CHECKPOINT)
    if checkpoint is None:
        raise UserError(
            f"{folder} has no checkpoint, which holds the clients' own models: load the run from "
            "the machine that ran it"
        )
    parts, facts = checkpoint
    state: Tree = parts["state"].get("clients", {}).get(str(client), {})
    if rounds := {int(k): round for k, round in facts["clients"].items()}:
        require(
            (folder / "clients").is_dir(),
            f"{folder} holds a deployment, whose clients keep their own models: load the folder "
            "of that client, on its machine",
        )
        state = OnDisk(folder / "clients", rounds).get(client)
    model = parts["state"]["model"]
    personal = personal_models(Model(model.get("params", {}), model.get("buffers", {})), [state])
    return {name: leaf[0] for name, leaf in (personal.params | personal.buffers).items()}


def _build(folder: Path, config: Config, data: DataDescription) -> nn.Module:
    """Build the network that a config names; its weights are yet to be filled in."""
    chosen = config.model
    require(
        "digest" not in chosen.options,
        f"the run in {folder} was given its network in Python: give it to fedfm.load, too, as "
        "model=...",
    )
    with torch.random.fork_rng(devices=[]):
        return models.build_for(data, chosen.name, **chosen.options)


def fill(network: nn.Module, tensors: Tree, path: Path) -> nn.Module:
    """Give a network the parameters and buffers that a run has saved, and return it."""
    leaves = trainable_parameters(network) | list_untrained_tensors(network)
    differing = leaves.keys() ^ tensors.keys()
    differing |= {
        name for name in leaves.keys() - differing if leaves[name].shape != tensors[name].shape
    }
    require(
        not differing,
        f"{path} does not fit {type(network).__name__}: they differ in "
        f"{', '.join(sorted(differing)[:3])}: give the network that was trained",
    )
    with torch.no_grad():
        for name, leaf in leaves.items():
            leaf.copy_(tensors[name])
    return network


def read_samples(run: Path | str, path: Path, data: DataDescription) -> NewSamples:
    """Read new samples for the model of a run: a table, texts or images, as it was trained on."""
    config = _load_config(Path(run).expanduser()).data
    if data.vocabulary:
        return read_new_texts(path, data.vocabulary, data.shape[0], config.text, config.label)
    if data.columns:
        samples = read_new_rows(path, data.columns, config.label, config.header is not False)
        merged = {old: new for new, several in (config.merge or {}).items() for old in several}
        classes = samples.classes and [merged.get(name, name) for name in samples.classes]
        return samples._replace(classes=classes)
    return read_new_images(path, data.shape)


def load_test_split(run: Path | str, client: int | str | None = None) -> Split:
    """Return the test samples of a run, from where its config says; of one client if given.

    All of them if test samples do not belong to clients.
    """
    config = _load_config(Path(run).expanduser())
    require(
        config.data.digest is None,
        f"the run in {run} was given its data in Python: give samples to evaluate on",
    )
    data = load_data(config)
    if client is None or data.test.clients is None:
        return data.test
    number = _number(client, config, DataDescription.of(data))
    return data.test.subset((data.test.clients == number).nonzero().flatten())
