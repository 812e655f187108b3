"""A classifier of Hugging Face, built from its config, is trained as it is."""

from typing import Any

import pytest
import torch

from fedfm import FedAvg, Partition, Training, models, simulate
from fedfm.core.errors import UserError
from fedfm.data import Dataset, Split

CLASSIFIER = "classifier"
SMALL: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 16,
    "num_labels": 3,
    "initializer_range": 0.1,
}


@pytest.fixture(scope="module")
def transformers() -> Any:
    """The package, which takes seconds to import: only where these tests run."""
    import transformers

    return transformers


def make_texts(count: int, seed: int) -> Split:
    """Return token ids of texts in which one of three ids, at any place, tells the class."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    ids = torch.randint(10, 100, (count, 12), generator=rng)
    lengths = torch.randint(6, 13, (count, 1), generator=rng)
    places = torch.randint(1, 6, (count, 1), generator=rng)
    ids.scatter_(1, places, labels.unsqueeze(1) + 2)
    mask = torch.arange(12) < lengths
    return Split({"input_ids": ids * mask, "attention_mask": mask.long()}, labels)


def test_a_classifier_learns_from_ids_and_masks(transformers):
    torch.manual_seed(0)
    data = Dataset("texts", make_texts(600, 0), make_texts(150, 1), ("a", "b", "c"))
    bert = transformers.BertForSequenceClassification(transformers.BertConfig(**SMALL))
    model = models.WithFeatures(bert, head="classifier")
    result = simulate(
        model,
        data,
        FedAvg(),
        partition=Partition("niid1", beta=0.5),
        training=Training(clients=3, rounds=4, epochs=2, batch_size=16, lr=0.05),
        executor="stacked",
    )
    assert result.test_accuracy > 0.9
    best = result.best.model
    model.load_state_dict(best.params | best.buffers)
    bert.eval()
    with torch.no_grad():
        right = bert(**data.test.inputs).logits.argmax(1) == data.test.labels
    assert float(right.double().mean()) == pytest.approx(result.test_accuracy)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_classifiers_are_stacked_and_train_as_in_a_loop(kind, transformers):
    """Their dropout and their masks included; some batches have no padding at all."""
    torch.manual_seed(0)
    if kind == "bert":
        bert = transformers.BertForSequenceClassification(transformers.BertConfig(**SMALL))
        model = models.WithFeatures(bert, CLASSIFIER)
    else:
        sizes = SMALL | {"pad_token_id": 0, "max_position_embeddings": 20}
        roberta = transformers.RobertaForSequenceClassification(transformers.RobertaConfig(**sizes))
        model = models.WithFeatures(roberta, f"{CLASSIFIER}.out_proj")
    texts = make_texts(90, 0)
    whole = torch.arange(90) % 3 == 0
    texts.inputs["attention_mask"][whole] = 1
    data = Dataset("texts", texts, make_texts(30, 1), ("a", "b", "c"))
    ends = {
        name: simulate(
            model.double(),
            data,
            FedAvg(),
            partition=Partition("iid"),
            training=Training(clients=3, rounds=1, epochs=1, batch_size=2, lr=0.05),
            executor=name,
        )
        for name in ("loop", "stacked")
    }
    for name, value in ends["loop"].best.model.params.items():
        torch.testing.assert_close(value, ends["stacked"].best.model.params[name])


def test_a_head_that_pools_tokens_is_named_by_its_last_layer(transformers):
    config = transformers.RobertaConfig(**SMALL | {"pad_token_id": 0})
    roberta = transformers.RobertaForSequenceClassification(config)
    inputs = {"input_ids": torch.arange(2, 10).view(2, 4)}
    with pytest.raises(UserError, match=r'head="classifier\.out_proj"'):
        models.WithFeatures(roberta, head="classifier")(**inputs)
    features, logits = models.WithFeatures(roberta, head="classifier.out_proj")(**inputs)
    assert (features.shape, logits.shape) == ((2, 32), (2, 3))


def test_ids_outside_of_the_vocabulary_are_refused_before_training(transformers):
    texts = make_texts(60, 0)
    texts.inputs["input_ids"][7, 3] = 100
    data = Dataset("texts", texts, make_texts(30, 1), ("a", "b", "c"))
    bert = transformers.BertForSequenceClassification(transformers.BertConfig(**SMALL))
    model = models.WithFeatures(bert, "classifier")
    with pytest.raises(UserError, match=r"ids run from 0 to 100.*outside of its embedding"):
        simulate(model, data, FedAvg(), training=Training(clients=2, rounds=1))
