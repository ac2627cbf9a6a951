"""GGUF file to a plain `transformers` folder in float32: run once, in a process of its own.

`python -m pdsched.model.convert FILE.gguf FOLDER` needs torch, transformers, gguf and accelerate and about 1.6 GB of
memory, all of which are given back when it ends. That is why `pdsched.model.fetch` starts it instead of importing it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Dequantise `gguf` into float32 safetensors, config, tokenizer and generation config under `folder`.

    `folder` must exist. Raises what `transformers` raises for a file that it cannot read.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer: Any = AutoTokenizer.from_pretrained(**source)
    quantised: Any = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # A model that came from GGUF refuses `save_pretrained` even though its weights are dequantised, so they move into a
    # fresh model of the same shape whose config never heard of the quantisation.
    config = type(quantised.config).from_dict(
        {key: value for key, value in quantised.config.to_dict().items() if key != "quantization_config"}
    )
    config.dtype = torch.float32
    model: Any = type(quantised)(config).to(torch.float32)
    model.load_state_dict(quantised.state_dict(), strict=True)
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m pdsched.model.convert FILE.gguf FOLDER")
    convert_gguf(Path(sys.argv[1]), Path(sys.argv[2]))
