"""The user's own texts: a table with a column of texts and a column of classes.

A text becomes the ids of its first words. The vocabulary is made of the training samples: id 0 is
padding, id 1 stands for every other word.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedfm.core.errors import require
from fedfm.data.dataset import Dataset, Split
from fedfm.data.folder import encode_labels, split_off_test
from fedfm.data.source import Source
from fedfm.data.table import check_labels, find_column, read_labels, read_table

WORD = re.compile(r"\w+(?:'\w+)*|[^\w\s]")
"""A word, with inner apostrophes, or a punctuation mark, in a text in lower case."""
PADDING, UNKNOWN = "<pad>", "<unk>"
"""The words with the ids 0 and 1; no text contains them."""


class Texts(NamedTuple):
    """Words and label of every row of a table."""

    words: list[list[str]]
    labels: list[str]


def read_text(
    folder: Path,
    *,
    path: Path,
    test_path: Path | None = None,
    text: str = "text",
    label: str = "label",
    header: bool = True,
    vocabulary: int = 20_000,
    length: int = 64,
) -> Dataset:
    """Read the table at `path`, and the test samples at `test_path` if given."""
    for option, value in (("vocabulary", vocabulary), ("length", length)):
        require(value > 0, f"{option} must be at least 1, not {value}")
    texts = _read_texts(Path(path), text, label, header)
    check_labels(f"{path}, column '{label}'", texts.labels)
    if test_path is None:
        rows = torch.arange(len(texts.words))
        classes, labels = encode_labels(texts.labels)
        train, test = split_off_test(rows, labels)
    else:
        tests = _read_texts(Path(test_path), text, label, header)
        _check_classes(Path(test_path), texts.labels, tests.labels)
        classes, labels = encode_labels(texts.labels + tests.labels)
        rows, count = torch.arange(len(labels)), len(texts.labels)
        train, test = (Split(rows[part], labels[part]) for part in (rows < count, rows >= count))
        texts = Texts(texts.words + tests.words, texts.labels + tests.labels)
    words = make_vocabulary((texts.words[row] for row in train.inputs.tolist()), vocabulary)
    ids = encode_words(texts.words, words, length)
    train, test = (Split(ids[split.inputs], split.labels) for split in (train, test))
    return Dataset("text", train, test, classes, vocabulary=words)


def split_words(text: str) -> list[str]:
    """Return the words and punctuation marks of a text, in lower case.

    Args:
        text: The text.

    Returns:
        The words.

    Examples:
        >>> split_words("It isn't bad!")
        ['it', "isn't", 'bad', '!']
    """
    return WORD.findall(text.lower())


def make_vocabulary(texts: Iterable[Sequence[str]], size: int) -> tuple[str, ...]:
    """Return padding, the unknown word and the most frequent words; ties by the word itself.

    Args:
        texts: The words of every training text.
        size: How many words to take at most.

    Returns:
        The words by id.

    Examples:
        >>> make_vocabulary([["a", "film"], ["a", "good", "film"]], size=2)
        ('<pad>', '<unk>', 'a', 'film')
    """
    counts = Counter(word for words in texts for word in words)
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[:size]
    return PADDING, UNKNOWN, *frequent


def encode_words(texts: Sequence[Sequence[str]], vocabulary: Sequence[str], length: int) -> Tensor:
    """Return the ids of the first words of every text.

    Args:
        texts: The words of every text.
        vocabulary: The words by id.
        length: T, the number of ids of a text; shorter texts are padded.

    Returns:
        [N, T], int64.

    Examples:
        >>> encode_words([["a", "film"], ["bad"]], ("<pad>", "<unk>", "a", "film"), length=3)
        tensor([[2, 3, 0],
                [1, 0, 0]])
    """
    index = {word: place for place, word in enumerate(vocabulary)}
    unknown = index[UNKNOWN]
    ids = torch.zeros(len(texts), length, dtype=torch.int64)
    for row, words in zip(ids, texts, strict=True):
        known = [index.get(word, unknown) for word in words[:length]]
        row[: len(known)] = torch.tensor(known, dtype=torch.int64)
    return ids


def _read_texts(path: Path, text: str, label: str, header: bool) -> Texts:
    path = path.expanduser()
    names, rows = read_table(path, header)
    column = find_column(path, names, text, "text")
    labels = read_labels(path, names, rows, find_column(path, names, label, "label"))
    words = [split_words(cells[column]) for _, cells in rows]
    for (line, _), found in zip(rows, words, strict=True):
        require(len(found) > 0, f"{path}, row {line}, column '{text}': there is no word")
    return Texts(words, labels)


def _check_classes(path: Path, training: Sequence[str], test: Sequence[str]) -> None:
    strange = sorted({*test} - {*training})
    require(not strange, f"{path}: no training text of class {', '.join(strange[:5])}")


TEXT = Source(
    "text", "your texts: a CSV or TSV file with a text and a label column (needs path)", read_text
)
