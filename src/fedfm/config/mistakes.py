"""What is wrong with a config, in a line or two, and what would be right."""

import difflib

from pydantic import ValidationError

from fedfm.config.keys import full_key
from fedfm.config.schema import SECTIONS, Config, field_names, in_words
from fedfm.config.training import Training
from fedfm.core.errors import unknown
from fedfm.data.partition import Partition
from fedfm.methods import PIECES


def first_mistake(problem: ValidationError) -> str:
    """The first thing that is wrong, with its key."""
    error = problem.errors()[0]
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        *sections, key = map(str, error["loc"])
        return _unknown_key(sections, key)
    return in_words(error)


def _unknown_key(sections: list[str], key: str) -> str:
    """Where a key belongs, or the nearest right one."""
    if full_key(key) != key:
        return f"unknown key '{key}': it is called {full_key(key)}"
    if sections:
        known = field_names(SECTIONS[sections[0]])
        return str(unknown(f"key in [{sections[0]}]:", key, known))
    shortened = [*PIECES, *field_names(Training), *field_names(Partition)]
    own = [name for name, kind in PIECES.items() if key in field_names(kind)]
    if own:
        return f"unknown key '{key}': a setting of {', '.join(own)}, so e.g. {own[-1]}.{key}"
    known = [name for name in Config.model_fields if name != "code"]
    near = difflib.get_close_matches(key, [*known, *shortened], n=1)
    if near:
        return f"unknown key '{key}': did you mean '{full_key(near[0])}'?"
    return str(unknown("key", key, known))
