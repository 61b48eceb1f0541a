"""config.json, with the errors that its readers need.

Reasons of CheckpointError raised here: missing_config, config_key; and those of `strict_json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layercast.checkpoint.strict_json import read_object
from layercast.errors import CheckpointError

CONFIG_NAME = "config.json"


class ModelConfig:
    """A model's config.json. Keys are read from `text_config` where a language model is nested in it."""

    def __init__(self, path: Path, raw: Mapping[str, Any]) -> None:
        self.path = path
        self.raw = raw
        text = raw.get("text_config", raw)
        self._text: Mapping[str, Any] = self._object("text_config", text)

    @classmethod
    def read(cls, directory: Path) -> ModelConfig:
        """Read `directory`/config.json; CheckpointError reason "missing_config" where there is none."""
        path = directory / CONFIG_NAME
        if not path.exists():
            raise CheckpointError(
                f"{path} does not exist",
                reason="missing_config",
                hint="it says which layers are MoE and how they are quantised; fetch it with the weights",
            )
        return cls(path, read_object(path))

    @property
    def model_types(self) -> tuple[str, ...]:
        """model_type of the language model, then of the whole, without repetition."""
        found = (self._text.get("model_type"), self.raw.get("model_type"))
        return tuple(dict.fromkeys(value for value in found if isinstance(value, str)))

    @property
    def quantization(self) -> Mapping[str, Any] | None:
        """quantization_config, or None where nothing is quantised."""
        for holder in (self.raw, self._text):
            if holder.get("quantization_config") is not None:
                return self._object("quantization_config", holder["quantization_config"])
        return None

    def has(self, key: str) -> bool:
        """Whether `key` is there and not null."""
        return self._text.get(key) is not None

    def get(self, key: str) -> Any:
        """The raw value of `key`, or None."""
        return self._text.get(key)

    def integer(self, key: str, *, default: int | None = None, minimum: int = 0) -> int:
        """A whole number of at least `minimum`; where the key is absent or null, `default`."""
        value = self._text.get(key)
        if value is None and default is not None:
            return default
        if type(value) is not int or value < minimum:
            raise self.error(key, f"is {value!r}, expected a whole number of at least {minimum}")
        return value

    def counts(self, key: str) -> int | tuple[int, ...]:
        """A whole number of at least 1, or a list of whole numbers."""
        if isinstance(self._text.get(key), list):
            return self.integers(key)
        return self.integer(key, minimum=1)

    def integers(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers >= 0, empty where the key is absent or null."""
        value = self._text.get(key) or []
        if not isinstance(value, list) or any(type(item) is not int or item < 0 for item in value):
            raise self.error(key, f"is {value!r}, expected a list of whole numbers")
        return tuple(value)

    def error(self, key: str, fault: str) -> CheckpointError:
        """The error that says what is wrong with `key`, to be raised by the caller."""
        return CheckpointError(f"{self.path}: {key} {fault}", reason="config_key")

    def _object(self, key: str, value: Any) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise self.error(key, f"is a {type(value).__name__}, expected an object")
        return value
