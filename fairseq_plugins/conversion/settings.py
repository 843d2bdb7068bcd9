"""What `load` has to know of a converted model besides its files: languages, and options that are not the default."""

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fairseq_plugins.conversion.families import Config, read_json
from fairseq_plugins.conversion.vocabulary import Vocabulary
from fairseq_plugins.errors import ConfigurationError

_FILE = "load.json"
# How the languages of M2M-100, NLLB and mBART-50 are written in their vocabularies.
_LANGUAGE = re.compile(r"__([a-z]{2,3})__|[a-z]{3}_[A-Z][a-z]{3}|[a-z]{2}_[A-Z]{2}")


@dataclass(frozen=True)
class Settings:
    """The file load.json of a folder.

    Attributes:
        languages: name of each language -> its token, which sources and outputs begin with; empty for models of one
            pair.
        options: as `load` takes them.
    """

    languages: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> "Settings":
        """Return the settings of a folder; empty ones where it has none.

        Raises:
            ConfigurationError: for a file that is broken.
        """
        file = folder / _FILE
        if not file.is_file():
            return cls()
        values = read_json(file)
        if not isinstance(values, dict) or values.keys() != {"languages", "options"}:
            raise ConfigurationError(f"{file}: is not of spec-dec-convert; convert the model again")
        return cls(**values)

    def write(self, folder: Path) -> None:
        """Write them into a folder."""
        (folder / _FILE).write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def first_tokens(self, source: str | None, target: str | None) -> dict[str, str]:
        """Return the options that give a multilingual model its languages.

        Raises:
            ConfigurationError: for a language that is missing or unknown.
        """
        found = {}
        for argument, name, option in (
            ("source_lang", source, "source_first_token"),
            ("target_lang", target, "forced_first_token"),
        ):
            if name not in self.languages:
                given = f"{argument}: missing" if name is None else f"{argument} {name}: unknown"
                known = list(self.languages)  # NLLB has 202
                near = [language for language in known if language[:2] == (name or "")[:2]] or known
                raise ConfigurationError(
                    f"{given}; this model is multilingual: give one of its {len(known)}, such as {', '.join(near[:8])}"
                )
            found[option] = self.languages[name]
        return found


def settings_of(config: Config, vocabulary: Vocabulary) -> Settings:
    """Return the settings that make `load` decode as `generate` does by default."""
    options: dict[str, Any] = {"min_len": 0}
    if config["model_type"] == "bart":
        options["source_first_token"] = "<s>"
        if config.values.get("forced_bos_token_id") == config["bos_token_id"]:
            options["forced_first_token"] = "<s>"
    languages = {}
    if config["model_type"] in ("m2m_100", "mbart"):
        for symbol in vocabulary.symbols:
            match = _LANGUAGE.fullmatch(symbol)
            if match is not None:
                languages[match[1] or symbol] = symbol
    return Settings(languages, options)
