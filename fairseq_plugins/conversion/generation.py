"""Settings of generation_config.json: those that `load` honours, and those that it would ignore."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypedDict

from fairseq.dataclass.configs import GenerationConfig

from fairseq_plugins.conversion.families import Config
from fairseq_plugins.decoding.search_numbers import Length, Power
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.files import first_of
from fairseq_plugins.shared.typed_values import WrongValue, checked, read_json

_FILE = "generation_config.json"

# Of beam search and sampling, which greedy search does not read; for a drafter of their own; for speed and output.
_WITHOUT_EFFECT = {
    *("num_beams", "num_beam_groups", "diversity_penalty", "early_stopping", "num_return_sequences", "low_memory"),
    *("temperature", "top_k", "top_p", "top_h", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff"),
    *("renormalize_logits", "remove_invalid_values", "use_cache", "cache_implementation", "cache_config"),
    *("return_legacy_cache", "prefill_chunk_size", "compile_config", "disable_compile", "is_assistant"),
    *("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold"),
    *("assistant_early_exit", "assistant_lookbehind", "target_lookbehind"),
    *("prompt_lookup_num_tokens", "max_matching_ngram_size", "output_attentions", "output_hidden_states"),
    *("output_scores", "output_logits", "return_dict_in_generate", "transformers_version", "_from_model_config"),
}
# Tokens of the model, which the converter reads elsewhere, and lengths.
_HONOURED = {
    *("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "forced_bos_token_id"),
    *("forced_eos_token_id", "max_length", "max_new_tokens", "min_length", "min_new_tokens"),
    *("no_repeat_ngram_size", "length_penalty", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens"),
}
# Settings that change the output -> the value that does not.
_REFUSED: dict[str, Any] = {
    "do_sample": False,
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0,
    "exponential_decay_length_penalty": None,
    "sequence_bias": None,
    "guidance_scale": None,
    "forced_decoder_ids": None,
    "force_words_ids": None,
    "constraints": None,
    "penalty_alpha": None,
    "dola_layers": None,
    "stop_strings": None,
    "max_time": None,
    "token_healing": False,
    "watermarking_config": None,
}


class _Numbers(TypedDict, total=False):
    max_length: Length
    max_new_tokens: Length
    min_length: Length
    min_new_tokens: Length
    no_repeat_ngram_size: Length
    length_penalty: Power


_LISTS_OF_TOKENS = ("bad_words_ids", "suppress_tokens", "begin_suppress_tokens")
# Older models have these in config.json.
_OF_CONFIG = {*_HONOURED, *_REFUSED} - {"constraints"}


def generation_options(model: Config, names: Mapping[int, str], ignored: Collection[str] = ()) -> dict[str, Any]:
    """Return the options of `load` for a model's settings of generation.

    Without generation_config.json those of config.json count. `names` are the dictionary's symbols of the model's ids,
    and `ignored` those of settings that shall not count. Raises ConfigurationError for settings that change the output
    and are not supported, and names in `ignored` that the model does not set.
    """
    folder, config = model.file.parent, model.own
    file, settings = model.file, {name: config[name] for name in _OF_CONFIG & config.keys()}
    found = first_of(folder, _FILE)
    if found is not None:
        file = found
        settings = read_json(found, dict[str, Any])
    settings = {name: value for name, value in settings.items() if value is not None}
    unknown = sorted(set(ignored) - settings.keys())
    if unknown:
        raise ConfigurationError("--ignore", unknown[0], f"{file} does not set it", "leave it out")
    settings = {name: value for name, value in settings.items() if name not in ignored}
    refused = sorted(name for name, value in settings.items() if _changes_output(name, value, config))
    if refused:
        options = " ".join(f"--ignore {name:.60}" for name in refused)
        named = ", ".join(f"{name:.60} {settings[name]!r:.40}" for name in refused)
        problem = f"{named} would not be honoured, and outputs would differ from Hugging Face's"
        raise ConfigurationError(None, file, problem, f"to go on: spec-dec-convert {folder} OUT {options}")
    is_forced = model["model_type"] == "bart" and "forced_bos_token_id" in settings
    return {
        **_options(file, settings, model["max_position_embeddings"]),
        **_suppressed(file, settings, config, names),
        **({"forced_first_token": "<s>"} if is_forced else {}),
    }


def _changes_output(name: str, value: Any, config: dict[str, Any]) -> bool:
    """Return whether a setting changes the output in a way that `load` cannot."""
    if name in _WITHOUT_EFFECT:
        return False
    if name in _REFUSED:
        return value not in (_REFUSED[name], [], {})
    if name == "bad_words_ids":
        return not isinstance(value, list) or any(not isinstance(word, list) or len(word) != 1 for word in value)
    if name == "no_repeat_ngram_size":
        return bool(value == 1)
    if name in ("eos_token_id", "decoder_start_token_id"):  # those of config.json count here, in Hugging Face these
        return value not in (config.get(name, value), [config.get(name)])
    if name == "forced_bos_token_id" and config.get("model_type") == "bart":
        return bool(value != config.get("bos_token_id"))
    if name == "forced_bos_token_id":  # a language, which the user gives
        return config.get("model_type") not in ("m2m_100", "mbart")
    if name == "forced_eos_token_id":
        return value not in (config.get("eos_token_id"), [config.get("eos_token_id")])
    return name not in _HONOURED


def _suppressed(
    file: Path, settings: dict[str, Any], config: dict[str, Any], names: Mapping[int, str]
) -> dict[str, list[str]]:
    """Return the options for tokens that no output has, or that none begins with."""
    found: dict[str, list[Any]] = {}
    for name in _LISTS_OF_TOKENS:
        tokens = settings.get(name, [])
        if name == "bad_words_ids":
            # Hugging Face leaves out EOS here.
            tokens = [token for (token,) in tokens if token != config.get("eos_token_id")]
        known = [token for token in tokens if type(token) is int and token in names] if isinstance(tokens, list) else []
        if not isinstance(tokens, list) or len(known) < len(tokens):
            problem = f"{name} is {settings[name]!r:.60}, not ids of the model"
            raise ConfigurationError(None, file, problem, "copy it again")
        # fairseq never generates the padding.
        found[name] = [names[token] for token in known if token != config.get("pad_token_id")]
    everywhere = found["bad_words_ids"] + found["suppress_tokens"]
    options = {"suppress_tokens": everywhere, "begin_suppress_tokens": found["begin_suppress_tokens"]}
    return {name: tokens for name, tokens in options.items() if tokens}


def _options(file: Path, settings: dict[str, Any], positions: int) -> dict[str, Any]:
    """Return the options for lengths, repetitions and the length penalty."""
    try:
        numbers: _Numbers = checked(settings, _Numbers)
    except WrongValue as error:
        problem = f"{error.name} is {settings[error.name]!r:.60}"
        raise ConfigurationError(None, file, problem, error.remedy) from error
    # Lengths count the first token of the decoder's input, and EOS; numbers of new tokens take precedence.
    least = numbers.get("min_new_tokens", max(numbers.get("min_length", 0) - 1, 0))
    options: dict[str, Any] = {"min_len": least}
    longest = numbers.get("max_new_tokens") or numbers.get("max_length", 0) - 1
    if longest > 0:
        # A forced EOS is the last of these tokens; fairseq adds it.
        options["max_len_b"] = longest - 1 if "forced_eos_token_id" in settings else longest
    longest = min(options.get("max_len_b", GenerationConfig.max_len_b), positions - 1)
    if least > longest:
        problem = f"its shortest output has {least} tokens, its longest {longest}"
        raise ConfigurationError(None, file, problem, "lower min_length or min_new_tokens")
    if numbers.get("no_repeat_ngram_size"):
        options["no_repeat_ngram_size"] = numbers["no_repeat_ngram_size"]
    if numbers.get("length_penalty", 1.0) != 1.0:
        options["lenpen"] = numbers["length_penalty"]
    return options
