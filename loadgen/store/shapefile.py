"""The model shape that a user names: of the catalogue, written out, or in the file of a Hugging Face repository.

Knows: that a name ending in .json is a file, and what to call its model. Must not know: the keys in it (`hfconfig`).
Why: every `--shape`, in a command, a spec or a notebook, must be read alike.
"""

from __future__ import annotations

import json
from pathlib import Path

from loadgen.errors import UsageError
from loadgen.roofline import catalog
from loadgen.roofline.hfconfig import shape_from_config
from loadgen.roofline.shapes import ModelShape


def is_shape_file(name: str) -> bool:
    """Whether the name is that of a file."""
    return Path(name).suffix.lower() == ".json"


def read_shape(name: str) -> ModelShape:
    """The model shape of this name, or in this config.json (called as its folder, or as the file itself).

    Raises:
        UsageError: unknown name, unreadable file, or a file without the dimensions.
    """
    if not is_shape_file(name):
        return catalog.shape(name)
    path = Path(name)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as bad:
        raise UsageError(f"cannot read it: {bad}", where=name, do="give a model's config.json") from bad
    if not isinstance(config, dict):
        raise UsageError("not a JSON object", where=name, do="give a model's config.json")
    folder = path.resolve().parent.name
    return shape_from_config(config, folder if path.stem == "config" and folder else path.stem, where=name)
