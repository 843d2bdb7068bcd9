"""Make Triton's interpreter faster."""

from typing import Any

import triton.language as tl
from triton.runtime import interpreter


def patch_once() -> None:
    """Let a kernel's functions use what the launch has patched in `triton.language`; a third of the time goes there."""
    patch = interpreter._patch_lang

    def patch_lang(fn: Any) -> Any:
        languages = [value for value in fn.__globals__.values() if value is tl or value is tl.core]
        is_patched = not any(tl.core.is_builtin(language.load) for language in languages)
        return interpreter._LangPatchScope() if is_patched else patch(fn)

    interpreter._patch_lang = patch_lang
