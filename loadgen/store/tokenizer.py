"""A tokenizer.json as counting functions, for prompts of exactly the asked length.

Knows: the `tokenizers` library (an optional extra). Must not know: what is counted.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from loadgen.errors import UsageError


class TokenizerFile:
    """Counts the tokens of a text, special tokens left out; picklable, read once by every process."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, text: str) -> int:
        return len(_tokenizer(self.path).encode(text, add_special_tokens=False).ids)

    def many(self, texts: list[str]) -> list[int]:
        """The tokens of each text."""
        return [len(found.ids) for found in _tokenizer(self.path).encode_batch_fast(texts, add_special_tokens=False)]


def read_tokenizer(path: str) -> TokenizerFile:
    """The tokenizer in a `tokenizer.json`, or in the folder that holds one.

    Raises:
        UsageError: the extra is not installed, or this is no tokenizer.
    """
    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    _tokenizer(str(file))  # a mistake is told before the first request
    return TokenizerFile(str(file))


@lru_cache(maxsize=2)
def _tokenizer(path: str) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as bad:
        raise UsageError("counting with a tokenizer needs an extra", do="pip install 'loadgen[tokenizers]'") from bad
    try:
        return Tokenizer.from_file(path)
    except Exception as bad:  # the library raises bare Exception for every kind of file
        raise UsageError(f"is no tokenizer: {bad}", where=path, do="give a Hugging Face tokenizer.json") from bad
