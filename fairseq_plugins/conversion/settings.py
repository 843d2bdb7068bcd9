"""Settings of a converted model, for `load`: its languages, and options that differ from the defaults."""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.typed_values import read_json

_FILE = "load.json"


class _Contents(TypedDict):
    languages: dict[str, str]
    options: dict[str, Any]


@dataclass(frozen=True)
class LoadSettings:
    """Contents of a folder's load.json.

    Attributes:
        languages: name of each language -> its token, the first of sources and outputs; empty for models of a single
            language pair.
        options: arguments for `load`.
    """

    languages: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> "LoadSettings":
        """Return the settings of a folder; empty settings if it has no load.json.

        Raises:
            ConfigurationError: for a file that spec-dec-convert did not write.
        """
        file = folder / _FILE
        if not os.path.lexists(file):
            return cls()
        values: _Contents = read_json(file, _Contents, "convert the model again with spec-dec-convert")
        return cls(**values)

    def write(self, folder: Path) -> None:
        """Write load.json into a folder."""
        (folder / _FILE).write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def first_tokens(self, source: str | None, target: str | None) -> dict[str, str]:
        """Return the options that set the language tokens of a multilingual model.

        Raises:
            ConfigurationError: for a language that is missing or unknown.
        """
        options = {}
        for language, name, option in (
            ("--source-lang", source, "source_first_token"),
            ("--target-lang", target, "forced_first_token"),
        ):
            if name not in self.languages:
                known = list(self.languages)  # NLLB has 202
                similar = [one for one in known if one[:2] == (name or "")[:2]] or known
                raise ConfigurationError(
                    language,
                    name,
                    "missing" if name is None else "unknown",
                    f"this model is multilingual: give one of its {len(known)} languages, such as "
                    f"{', '.join(similar[:8])}",
                )
            options[option] = self.languages[name]
        return options
