"""Text to tokens and back without torch or transformers: the engine process loads this in a fraction of a second."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pdsched.model.info import ModelError, resolve_model

TokenIds = npt.NDArray[np.uint32]


class Tokenizer:
    """The tokenizer of a model folder, with its chat template when it has one."""

    def __init__(
        self, backend: Any, chat_template: str | None = None, special: Mapping[str, str] | None = None
    ) -> None:
        """Use `load`. `backend` is a `tokenizers.Tokenizer`; `special` are the texts a template may name."""
        self._backend = backend
        self._special = dict(special or {})
        self._template = None if chat_template is None else _compile(chat_template)

    @classmethod
    def load(cls, path_or_name: str | Path) -> Tokenizer:
        """Of a model folder or name, see `resolve_model`. Raises `ModelError` when it has no fast tokenizer."""
        from tokenizers import Tokenizer as Backend

        folder = resolve_model(path_or_name)
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise ModelError(f"model {folder.name!r} has no tokenizer.json in {folder}")
        settings: dict[str, Any] = {}
        if (folder / "tokenizer_config.json").is_file():
            settings = json.loads((folder / "tokenizer_config.json").read_text())
        template = settings.get("chat_template")
        if (folder / "chat_template.jinja").is_file():
            template = (folder / "chat_template.jinja").read_text()
        special = {name: _text_of(value) for name, value in settings.items() if name.endswith("_token") and value}
        return cls(Backend.from_file(str(file)), template if isinstance(template, str) else None, special)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> TokenIds:
        """Token ids of `text`; special tokens are what the model's own tokenizer would put around it."""
        return np.asarray(self._backend.encode(text, add_special_tokens=add_special_tokens).ids, dtype=np.uint32)

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Text of the tokens; bytes that are no whole character become U+FFFD."""
        return str(self._backend.decode([int(token) for token in token_ids], skip_special_tokens=skip_special_tokens))

    def stream(self) -> TextStream:
        """A fresh incremental decoder for one sequence."""
        return TextStream(self._backend)

    def chat(self, messages: Sequence[Mapping[str, str]]) -> TokenIds:
        """Token ids of a conversation, up to where the assistant's answer begins.

        `messages` are mappings with `role` and `content`. Raises `ModelError` when the model has no chat template.
        """
        if self._template is None:
            raise ModelError("this model has no chat template; send plain text instead")
        text = self._template.render(messages=list(messages), add_generation_prompt=True, **self._special)
        return self.encode(text, add_special_tokens=False)


class TextStream:
    """Text as tokens arrive: a token that ends inside a character gives nothing until the character is whole."""

    def __init__(self, backend: Any) -> None:
        """See `Tokenizer.stream`."""
        from tokenizers.decoders import DecodeStream

        self._backend = backend
        self._stream = DecodeStream(skip_special_tokens=True)

    def push(self, token_id: int) -> str:
        """The text that this token completes, perhaps none."""
        return self._stream.step(self._backend, int(token_id)) or ""


def _text_of(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token)


def _compile(template: str) -> Any:
    """Chat templates come with the model: they are run in Jinja's sandbox."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise ModelError(f"the chat template refused the conversation: {message}")

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = raise_exception
    return environment.from_string(template)
