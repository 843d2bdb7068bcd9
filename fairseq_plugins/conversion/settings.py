"""Settings of a converted model, for `load`: its languages, and options that differ from the defaults."""

import json
import os
import re
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from fairseq_plugins.conversion.families import Config
from fairseq_plugins.conversion.generation import generation_options
from fairseq_plugins.conversion.vocabulary import Vocabulary
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.typed_values import read_json

_FILE = "load.json"
# Language tokens in the vocabularies of M2M-100 (`__de__`), NLLB (`deu_Latn`) and mBART-50 (`de_DE`).
_LANGUAGE = re.compile(r"__([a-z]{2,3})__|[a-z]{3}_[A-Z][a-z]{3}|[a-z]{2}_[A-Z]{2}")


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


def settings_of(config: Config, vocabulary: Vocabulary, ignored: Collection[str] = ()) -> LoadSettings:
    """Return the settings with which `load` decodes as Hugging Face's `generate` does by default.

    Args:
        config, vocabulary: of the model.
        ignored: names of settings of generation that shall not count.

    Raises:
        ConfigurationError: for a multilingual model without language tokens, and as `generation_options`.
    """
    options = generation_options(config.file.parent, config.own, vocabulary.names, ignored)
    if config["model_type"] == "bart":
        options["source_first_token"] = "<s>"
        is_forced = config.values.get("forced_bos_token_id") == config["bos_token_id"]
        if is_forced and "forced_bos_token_id" not in ignored:
            options["forced_first_token"] = "<s>"
    languages = {}
    if config["model_type"] in ("m2m_100", "mbart"):
        for symbol in vocabulary.symbols:
            match = _LANGUAGE.fullmatch(symbol)
            if match is not None:
                languages[match[1] or symbol] = symbol
        if not languages:
            raise ConfigurationError(
                None,
                config.file.parent,
                "has no language tokens (__de__, deu_Latn or de_DE), with which sources and outputs of a "
                f"{config['model_type']} model begin",
                "save its tokenizer into it with save_pretrained",
            )
    return LoadSettings(languages, options)
