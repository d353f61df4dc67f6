"""A model folder in Hugging Face's layout, read without transformers (whose import takes seconds)."""

from __future__ import annotations

import json
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json")
_WEIGHT_PATTERNS = ("*.safetensors", "pytorch_model*.bin")


def is_hub_id(path: str) -> bool:
    """True if a model path is `organisation/name` on a model hub rather than a folder here."""
    return bool(_HUB_ID.fullmatch(path)) and not Path(path).exists() and not Path(path.split("/")[0]).is_dir()


def hub_snapshot(hub_id: str) -> Path | None:
    """The folder of an already downloaded hub model, from the files of the hub's cache."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    snapshots = cache / f"models--{hub_id.replace('/', '--')}" / "snapshots"
    found = sorted(path for path in snapshots.glob("*") if (path / "config.json").is_file())
    return found[-1] if found else None


def local_folder(path: str) -> Path | None:
    """The folder of a model here, also of a downloaded hub model; None when it is not here."""
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    return hub_snapshot(path) if is_hub_id(path) else None


def has_tokenizer(folder: Path) -> bool:
    """True if the folder holds a tokenizer's vocabulary."""
    return any((folder / name).is_file() for name in _TOKENIZER_FILES)


def weight_files(folder: Path) -> list[Path]:
    """The files with weights in a folder."""
    return [path for pattern in _WEIGHT_PATTERNS for path in folder.glob(pattern)]


def has_weights(folder: Path) -> bool:
    """True if the folder holds weights."""
    return bool(weight_files(folder))


def tensor_names(folder: Path) -> list[str]:
    """Names of the folder's weights; empty where they are not in safetensors' format, ValueError where a file
    can't be read."""
    names: list[str] = []
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        names += (name for name in header if name != "__metadata__")
    return names


def same_tokens(one: Path, other: Path) -> bool:
    """True if the tokenizers of two folders have the same ids for the same tokens. Without `tokenizer.json`
    the files of their vocabularies are compared as they are."""
    files = [(one / name, other / name) for name in _TOKENIZER_FILES]
    both = [pair for pair in files if all(path.is_file() for path in pair)]
    if not both:
        return False
    mine, theirs = both[0]
    if mine.read_bytes() == theirs.read_bytes():
        return True
    return mine.name == _TOKENIZER_FILES[0] and _tokens(mine) == _tokens(theirs)


def _tokens(path: Path) -> Any:
    """Vocabulary and added tokens of a `tokenizer.json`; the file's bytes where it is not in that form."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        added = sorted((one["id"], one["content"]) for one in found.get("added_tokens") or ())
        return found["model"]["vocab"], added
    except (ValueError, KeyError, TypeError):
        return path.read_bytes()


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json` of a folder; ValueError: it is no JSON object."""
    found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise ValueError(f"config.json holds {type(found).__name__}, expected an object")
    return found


def known_config(model: Any) -> dict[str, Any] | None:
    """`config.json` of a model by its folder or hub id, as `read_config`; None where it is not here."""
    folder = None if model is None else local_folder(str(model))
    return read_config(folder) if folder is not None and (folder / "config.json").is_file() else None


def chat_template(folder: Path) -> str | None:
    """The chat template: a file of its own, or inside `tokenizer_config.json`."""
    own = folder / "chat_template.jinja"
    if own.is_file():
        return own.read_text(encoding="utf-8")
    settings = tokenizer_config(folder)
    template = settings.get("chat_template")
    if isinstance(template, list):
        by_name = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        template = by_name.get("default")
    return template if isinstance(template, str) and template else None


def end_ids(folder: Path | None) -> frozenset[int]:
    """The end tokens that a model's generation config names; none without such a file."""
    path = None if folder is None else folder / "generation_config.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path is not None and path.is_file() else {}
    ends = found.get("eos_token_id")
    return frozenset([ends] if isinstance(ends, int) else ends or ())


@lru_cache(maxsize=8)
def tokenizer_config(folder: Path) -> dict[str, Any]:
    """`tokenizer_config.json`; empty when there is none or it can't be read."""
    try:
        found = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
