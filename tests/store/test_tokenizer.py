"""A tokenizer.json at hand: counts, travels to other processes, and is refused in one line where it is none."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from loadgen.errors import UsageError
from loadgen.store.tokenizer import read_tokenizer

_VOCABULARY = {"<s>": 0, "one": 1, "two": 2, "?": 3}


def _file(folder: Path) -> Path:
    """Words divided by blanks; a template that would put a mark before every text."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordLevel(_VOCABULARY, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def test_it_counts_the_text_alone_and_travels(tmp_path: Path) -> None:
    for path in (_file(tmp_path), tmp_path):  # a file, or the folder of a model
        count = pickle.loads(pickle.dumps(read_tokenizer(str(path))))
        assert [count(text) for text in ("", "one", "one two three")] == [0, 1, 3]


@pytest.mark.parametrize("content", [None, "", "{}", "\x00"])
def test_what_is_no_tokenizer_is_told_in_one_line(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "t.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(UsageError) as bad:
        read_tokenizer(str(path))
    assert bad.value.where == str(path)
    assert "\n" not in str(bad.value)
