"""Settings of a model's folder, for `load`: its languages, and options that differ from the defaults."""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.typed_values import checked, read_json

_FILE = "load.json"


class _Options(TypedDict, total=False):
    """Those that are written. Others of `load` name files, which a model's folder must not choose."""

    source_lang: str
    target_lang: str
    source_first_token: str
    forced_first_token: str
    suppress_tokens: list[str]
    begin_suppress_tokens: list[str]
    min_len: int
    max_len_b: int
    no_repeat_ngram_size: int
    lenpen: float
    int8: bool


class _Contents(TypedDict):
    languages: dict[str, str]
    options: dict[str, Any]


@dataclass(frozen=True)
class LoadSettings:
    """Contents of a folder's load.json: languages, and arguments (`options`) of `load`.

    `languages` has the token of each language, the first of sources and outputs; empty for models of a single pair.
    """

    languages: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> "LoadSettings":
        """Return the settings of a folder; empty settings if it has no load.json.

        Raises ConfigurationError for a file that spec-dec-convert or a recipe did not write.
        """
        file = folder / _FILE
        if not os.path.lexists(file):
            return cls()
        remedy = "convert the model again with spec-dec-convert"
        values: _Contents = read_json(file, _Contents, remedy)
        unknown = values["options"].keys() - _Options.__annotations__.keys()
        if unknown:
            raise ConfigurationError(None, file, f"option {min(unknown)!r:.60} is not of a model", remedy)
        try:
            checked(values["options"], _Options)
        except ValueError as error:
            raise ConfigurationError(None, file, f"its options are not right ({error})", remedy) from error
        return cls(**values)

    def write(self, folder: Path) -> None:
        """Write load.json into a folder."""
        (folder / _FILE).write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def first_tokens(self, source: str | None, target: str | None) -> dict[str, str]:
        """Return the options that set the language tokens of a multilingual model.

        Raises ConfigurationError for a language that is missing or unknown.
        """
        options = {}
        sides = ("--source-lang", source, "source_first_token"), ("--target-lang", target, "forced_first_token")
        for language, name, option in sides:
            if name not in self.languages:
                known = list(self.languages)  # NLLB has 202
                similar = [one for one in known if one[:2] == (name or "")[:2]] or known
                remedy = f"this model is multilingual: give one of its {len(known)} languages, such as "
                remedy += ", ".join(similar[:8])
                raise ConfigurationError(language, name, "missing" if name is None else "unknown", remedy)
            options[option] = self.languages[name]
        return options
