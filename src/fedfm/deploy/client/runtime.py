"""What a client needs to answer questions: its prepared data, the network and an executor."""

from collections.abc import Iterator
from contextlib import contextmanager
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
from fedfm.deploy.agreement import Agreement, apply_agreement, describe_agreement
from fedfm.deploy.client.site import Site
from fedfm.engine.choice import make_executor
from fedfm.engine.device_data import DeviceData
from fedfm.engine.evaluation import Evaluator
from fedfm.engine.executors import Executor
from fedfm.engine.networks import describe_task, list_untrained_tensors, trainable_parameters
from fedfm.losses import make_class_weights
from fedfm.methods.base import Model, Task
from fedfm.privacy.privacy_mechanism import secret_sources
from fedfm.rounds.federation import Federation, LocalTraining
from fedfm.run.client_results import to_sums
from fedfm.run.prepare import build_model, device_of, use_threads
from fedfm.run.simulation import device_data


class Runtime:
    """A client's machine, prepared for the questions of one federation."""

    def __init__(
        self, site: Site, config: Config, agreement: Agreement, client: int, data: Dataset
    ) -> None:
        self.config = config.model_copy(update={"device": site.device, "threads": site.threads})
        self.agreement, self.client = agreement, client
        self.data = apply_agreement(data, agreement)
        """The client's data, labelled and normalised as agreed."""

    @contextmanager
    def use_threads(self) -> Iterator[None]:
        """Use the site's number of threads inside the block."""
        with use_threads(self.config.threads, self.network):
            yield

    @cached_property
    def network(self) -> nn.Module:
        """The network with uninitialised weights: the server sends the weights."""
        with torch.device("meta"):
            network = build_model(self.config, describe_agreement(self.agreement), pretrained=False)
        network.to_empty(device=device_of(self.config))
        return network

    @cached_property
    def start(self) -> Model:
        """The network's tensors, for their shapes only: do not write to them."""
        model = Model(trainable_parameters(self.network), list_untrained_tensors(self.network))
        return model.map(lambda tree: trees.tree_map(Tensor.detach, tree))

    @cached_property
    def task(self) -> Task:
        """The shapes of the model and the data, and the roles of the model's tensors."""
        example, classes = self.agreement.example, len(self.agreement.classes)
        features = models.feature_dim(self.network, example)
        return describe_task(self.network, self.start, classes, features)

    @cached_property
    def samples(self) -> tuple[Tensor, Tensor]:
        """The indices of the samples for training and for validation."""
        places, share = np.arange(len(self.data.train)), self.config.training.validation
        training, validation = hold_out_client(self.client, places, share, self.config.seed)
        return torch.from_numpy(training), torch.from_numpy(validation)

    @cached_property
    def _executor(self) -> Executor:
        return make_executor("loop", self.network, self._device_data[0], self.config.precision)

    @cached_property
    def federation(self) -> Federation:
        """A federation in which every client has this client's samples."""
        return Federation(
            task=self.task,
            method=self.config.composed,
            executor=self._executor,
            samples=[self.samples[0]] * (self.client + 1),
            training=LocalTraining.from_config(self.config.training),
            participation=1.0,
            augmentation=self.data.augmentation,
            seed=self.config.seed,
            privacy=self.config.make_privacy(secret_sources),
            task_loss=self.config.task_loss,
            class_weights=make_class_weights(
                self.config.training.class_weights,
                [self.data.train.labels[self.samples[0]]] * (self.client + 1),
                len(self.data.classes),
            ),
            labels=self.data.train.labels,
        )

    def evaluate(self, model: Model) -> Tree:
        """Return what this client adds to the sums of a model's scores.

        `validation` and `clients` are values of its own, on validation and on test samples, in the
        form of sums over clients; `test` has the statistics of its test samples.
        """
        measures = self.config.measures
        evaluator = Evaluator(self._executor, [self.samples[1]], self._device_data, measures)
        tested = evaluator.measure_test(model)
        validation = evaluator.measure_clients(model)
        return {
            **({"validation": to_sums(validation)} if validation else {}),
            "clients": to_sums(tested.values()),
            "test": trees.sum_clients(tested.totals),
        }

    @cached_property
    def _device_data(self) -> tuple[DeviceData, DeviceData]:
        return device_data(self.network, self.data)
