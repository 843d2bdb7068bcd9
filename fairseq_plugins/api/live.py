"""Text that grows or is being edited: every translation is the draft of the next one."""

from typing import TYPE_CHECKING

from fairseq_plugins.errors import ConfigurationError

if TYPE_CHECKING:
    from fairseq_plugins.api.model import Model


class LiveSession:
    """Translates one text again and again while it changes, as captions and typing do; made by `Model.session`.

    The source is encoded anew every time, so each translation is that of `translate(text)`.

    Attributes:
        translation: the last one, None before the first.

    Raises:
        ConfigurationError: for a model that was loaded with another decoder than "reuse".
    """

    def __init__(self, model: "Model") -> None:
        if model.decoder != "reuse":
            raise ConfigurationError(f'session: is not for decoder {model.decoder}; load with decoder="reuse"')
        self._model = model
        self.translation: str | None = None

    def translate(self, text: str) -> str:
        """Translate the text as it is now.

        Raises:
            ConfigurationError: as `Model.translate`.
        """
        self.translation = self._model.translate(text, drafts=self.translation)
        return self.translation
