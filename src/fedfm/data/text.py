"""The user's own texts: a table with a column of texts and a column of classes.

A text becomes the ids of its first words. The vocabulary is made of the training samples, or read
from a file: id 0 is padding, id 1 stands for every other word.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, compress
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedfm.core.errors import UserError, list_some, require
from fedfm.data.columns import TableOptions
from fedfm.data.dataset import Dataset
from fedfm.data.preprocessing import draw_test, encode_clients, encode_labels
from fedfm.data.source import Source
from fedfm.data.split import Split
from fedfm.data.table import check_labels, name_clients, read_labels
from fedfm.data.table_files import read_text_files

WORD = re.compile(r"\w+(?:'\w+)*|[^\w\s]")
"""A word, with inner apostrophes, or a punctuation mark, in a text in lower case."""
LENGTH = 64
"""The ids of a text, by default."""
PADDING, UNKNOWN = "<pad>", "<unk>"
"""The words with the ids 0 and 1; no text contains them."""


class Texts(NamedTuple):
    """What the rows of tables say: words, labels, and clients if the data say so."""

    words: list[list[str]]
    labels: list[str]
    clients: list[str]


def read_text(
    folder: Path,
    *,
    path: Path,
    test_path: Path | None = None,
    text: str | None = None,
    label: str | None = None,
    client: str | None = None,
    header: bool = True,
    vocabulary: int | None = 20_000,
    words: Path | None = None,
    length: int = LENGTH,
) -> Dataset:
    """Read the table at `path`, and the test samples at `test_path` if given.

    Without a file of words and with `vocabulary` None, all words get an id, also of test samples.
    """
    for option, value in (("vocabulary", vocabulary), ("length", length)):
        require(value is None or value > 0, f"{option} must be at least 1, not {value}")
    paths = [Path(each).expanduser() for each in (path, test_path) if each]
    tables = [_read_texts(each, text, label, client, header) for each in paths]
    texts = Texts(*([*chain(*column)] for column in zip(*tables, strict=True)))
    require(
        len({bool(table.clients) for table in tables}) == 1,
        f"{paths[-1]}: give the clients of the test samples as {path} does, by a table for each",
    )
    check_labels(str(path), tables[0].labels)
    _check_classes(paths[-1], tables[0].labels, tables[-1].labels)
    classes, labels = encode_labels(texts.labels)
    names, owners = encode_clients(str(path), texts.clients) if texts.clients else ((), None)
    test = torch.arange(len(labels)) >= len(tables[0].labels)
    test = test if test_path else draw_test(labels, owners)
    if words:
        known = read_words(Path(words))
    elif vocabulary:
        known = make_vocabulary(compress(texts.words, (~test).tolist()), vocabulary)
    else:
        known = make_vocabulary(texts.words)
    every = Split(encode_words(texts.words, known, length), labels, owners)
    parts = every.subset(~test), every.subset(test)
    return Dataset("text", *parts, classes, clients=names, vocabulary=known)


def read_words(path: Path) -> tuple[str, ...]:
    """Return the vocabulary of a file with one word in each line; padding comes first."""
    try:
        lines = [line.strip() for line in path.expanduser().read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as problem:
        reason = getattr(problem, "strerror", None) or "it is not a text in UTF-8"
        raise UserError(f"data.words: cannot read {path}: {reason}") from problem
    words = [line for line in lines if line and line not in (PADDING, UNKNOWN)]
    require(len(words) > 0, f"data.words: {path} has no words: write one in each line")
    twice = [word for word, count in Counter(words).items() if count > 1]
    require(not twice, f"data.words: {path} has {list_some(twice)} twice: leave one out")
    wrong = [word for word in words if split_words(word) != [word]]
    require(
        not wrong,
        f"data.words: {path} has {list_some(wrong)}, which no text contains: write one word in "
        "lower case in each line",
    )
    return PADDING, UNKNOWN, *words


def translate_ids(ids: Tensor, vocabulary: Sequence[str], wanted: Sequence[str]) -> Tensor:
    """Return the ids [N, T] of the same words in another vocabulary.

    Args:
        ids: [N, T], in `vocabulary`.
        vocabulary: The words by id.
        wanted: The words by id in the other vocabulary.

    Returns:
        [N, T]; words that the other vocabulary lacks are unknown.

    Examples:
        >>> words, wanted = ("<pad>", "<unk>", "a", "film"), ("<pad>", "<unk>", "film")
        >>> translate_ids(torch.tensor([[2, 3, 0]]), words, wanted)
        tensor([[1, 2, 0]])
    """
    index = {word: place for place, word in enumerate(wanted)}
    table = [index.get(word, index[UNKNOWN]) for word in vocabulary]
    return torch.tensor(table, dtype=torch.int64)[ids]


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


def make_vocabulary(texts: Iterable[Sequence[str]], size: int | None = None) -> tuple[str, ...]:
    """Return padding, the unknown word and the most frequent words; ties by the word itself.

    Args:
        texts: The words of every training text.
        size: How many words to take at most; None: all.

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


def _read_texts(
    path: Path, text: str | None, label: str | None, client: str | None, header: bool
) -> Texts:
    cells = read_text_files(path, header)
    column = cells.find(text or ("text" if header else cells.header[0]), "text")
    options = TableOptions(label or ("label" if header else cells.header[-1]), client)
    words = [split_words(cell) for cell in cells.column(column)]
    for row, words_of_text in enumerate(words):
        require(len(words_of_text) > 0, f"{cells.locate(row, column)}: there is no word")
    return Texts(words, read_labels(cells, options), name_clients(cells, options))


def _check_classes(path: Path, training: Sequence[str], test: Sequence[str]) -> None:
    strange = sorted({*test} - {*training})
    require(not strange, f"{path}: no training text of class {', '.join(strange[:5])}")


TEXT = Source(
    "text", "your texts: a CSV or TSV file with a text and a label column (needs path)", read_text
)
