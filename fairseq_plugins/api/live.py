"""Retranslate text that grows or is edited, with each translation as draft of the next one."""

from typing import TYPE_CHECKING

from fairseq_plugins.errors import ConfigurationError

if TYPE_CHECKING:
    from fairseq_plugins.api.model import Model


class Session:
    """Retranslates a text whenever it changes, such as captions or typing; made by `Model.session`.

    The whole source is encoded each time, so each translation equals `translate(text)`.

    Attributes:
        translation: the last translation, None before the first.

    Raises:
        ConfigurationError: if the model's decoder is not "reuse".
    """

    def __init__(self, model: "Model") -> None:
        if model.decoder != "reuse":
            problem = f"is not for decoder {model.decoder}"
            raise ConfigurationError("session", None, problem, "load with {--decoder reuse}")
        self._model = model
        self.translation: str | None = None

    def __repr__(self) -> str:
        return f"Session({self._model!r})"

    def translate(self, text: str) -> str:
        """Translate the text as it is now.

        Raises:
            ConfigurationError: as `Model.translate`.
        """
        self.translation = self._model.translate(text, drafts=self.translation)
        return self.translation
