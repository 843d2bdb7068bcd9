"""Explain errors of fairseq and PyTorch that the user can mend, by their message."""

import re

from fairseq_plugins.errors import ConfigurationError, one_line

# Also of the compiled kernels (csrc/limits.cpp).
NAN_SCORES = "the model's scores are not numbers (NaN): its weights or activations overflow"


def explain(error: BaseException) -> ConfigurationError | None:
    """Return a `ConfigurationError` itself, or that in place of an error of fairseq's; None for all others."""
    if isinstance(error, ConfigurationError):
        return error
    reason = one_line(error, 200)
    if isinstance(error, AssertionError) and reason.startswith("--"):  # of fairseq's commands, about their options
        return ConfigurationError(None, None, reason, "--decoder beam alone samples" if "--sampling" in reason else "")
    if type(error).__name__ == "OutOfMemoryError":  # of PyTorch; by name, to avoid its import
        remedy = "lower {--batch-size} or {--max-tokens}, or decode with {--cpu}"
        return ConfigurationError(None, None, f"out of memory on the GPU ({reason})", remedy)
    sentence = re.match(r"Size of sample #(\d+) is invalid \(=(.*)\) since max_positions=(.*), skip", reason)
    if sentence is not None:
        number, size, limit = (re.sub(r"np\.int\d+\((\d+)\)", r"\1", part) for part in sentence.groups())
        problem = f"sentence {number} (from 0) has {size} tokens, and at most {limit} can be read"
        remedy = "split it, or leave it out with {--skip-invalid-size-inputs-valid-test}"
        return ConfigurationError(None, None, problem, remedy)
    longer = re.match(r"Sentences lengths should not exceed max_tokens=(\d+)", reason)
    if longer is not None:
        return ConfigurationError("--max-tokens", int(longer[1]), "a sentence has more tokens", "raise it")
    # The second is PyTorch's, of an embedding.
    if reason in ("a source token is outside of the vocabulary", "index out of range in self"):
        remedy = "binarise it again with the verifier's dictionaries"
        return ConfigurationError(None, None, "the data has tokens that its dictionary does not", remedy)
    # The second is the assertion of fairseq's search when no hypothesis ends.
    if reason == NAN_SCORES or re.fullmatch(r"(\d+) < \1", reason):
        return ConfigurationError(None, None, NAN_SCORES, "decode in fp32, or give an earlier checkpoint")
    return None
