"""What a client works with: its data as the federation sees them, and the network."""

from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from fedfm import models
from fedfm.config import Config
from fedfm.core import trees
from fedfm.core.trees import Tree
from fedfm.data.dataset import Dataset
from fedfm.data.holdout import hold_out_client
from fedfm.deploy.agreement import Agreement, localised
from fedfm.deploy.client.site import Site, own_data
from fedfm.engine.choice import make_executor
from fedfm.engine.device_data import DeviceData
from fedfm.engine.evaluation import Evaluator
from fedfm.engine.executors import Executor
from fedfm.engine.networks import trainable_parameters, untrained_tensors
from fedfm.methods.base import Model, Piece, Task
from fedfm.privacy.guard import secret_sources
from fedfm.rounds.federation import Federation, LocalTraining
from fedfm.run.prepare import build_model, device_of, use_threads
from fedfm.run.simulation import device_data


class Workshop:
    """A client's machine, set up for one question."""

    def __init__(self, site: Site, config: Config, agreement: Agreement, client: int) -> None:
        self.config = config.model_copy(update={"device": site.device, "threads": site.threads})
        self.site, self.agreement, self.client = site, agreement, client

    @cached_property
    def data(self) -> Dataset:
        """Its own data, labelled and normalised as agreed."""
        return localised(own_data(self.site, self.config), self.agreement)

    @cached_property
    def network(self) -> nn.Module:
        """The network with weights that are anything: those that count come from the server."""
        with torch.device("meta"):
            network = build_model(self.config, self.agreement)
        network.to_empty(device=device_of(self.config))
        use_threads(self.config.threads, network)
        return network

    @cached_property
    def start(self) -> Model:
        """A model of the network's shapes, leaves [...]; not to be written to."""
        own = Model(trainable_parameters(self.network), untrained_tensors(self.network))
        return own.map(lambda tree: trees.tree_map(Tensor.detach, tree))

    def pieces(self, round: int) -> list[Piece]:
        """The pieces of the method that take part in a round."""
        return self.config.composed.active(round)

    @cached_property
    def samples(self) -> tuple[Tensor, Tensor]:
        """What it trains on, and what it holds out for validation."""
        places, share = np.arange(len(self.data.train)), self.config.training.validation
        training, validation = hold_out_client(self.client, places, share, self.config.seed)
        return torch.from_numpy(training), torch.from_numpy(validation)

    @cached_property
    def _executor(self) -> Executor:
        training, _ = self._feeds
        return make_executor("loop", self.network, training, self.config.precision)

    @cached_property
    def federation(self) -> Federation:
        """The federation as this client sees it: everybody has its own samples."""
        features = models.feature_dim(self.network, self.data.shape)
        return Federation(
            task=Task(self.start, len(self.data.classes), features),
            method=self.config.composed,
            executor=self._executor,
            samples=[self.samples[0]] * (self.client + 1),
            training=LocalTraining.from_config(self.config.training),
            participation=1.0,
            augmented=self.data.augment,
            seed=self.config.seed,
            guard=self.config.guard(secret_sources),
        )

    def scores(self, model: Model) -> Tree:
        """How good a model is here: validation accuracy, and the tests it gets right."""
        evaluate = Evaluator(self._executor, [self.samples[1]], self._feeds[1])
        (share,) = evaluate.measure_clients(model)
        return {"validation": share, "test": trees.sum_clients(evaluate.count_test(model))}

    @cached_property
    def _feeds(self) -> tuple[DeviceData, DeviceData]:
        return device_data(self.network, self.data)
