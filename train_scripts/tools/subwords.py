"""Learn and apply subwords: sentencepiece models, and the byte-level BPE of GPT-2 and BART."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from train_scripts.tools.text import file_pairs, read_lines, refuse, write_lines

SMALL = 5000  # a smaller vocabulary includes every character of the text


def learn(model: Path, files: Sequence[Path], *, kind: Literal["bpe", "unigram"], size: int) -> None:
    """Learn a joint sentencepiece model of all files, without normalisation or lower-casing.

    Args:
        model: file of the model.
        files: raw text.
        kind: kind of subwords.
        size: maximum number of subwords; a small corpus has fewer.

    Raises:
        ConfigurationError: for fewer subwords than the text has characters.
    """
    import sentencepiece

    try:
        sentencepiece.SentencePieceTrainer.train(
            input=[str(file) for file in files],
            model_prefix=f"{model}.partial",
            model_type=kind,
            vocab_size=size,
            hard_vocab_limit=False,
            character_coverage=1.0 if size < SMALL else 0.9999,
            normalization_rule_name="identity",
            input_sentence_size=1_000_000,
            shuffle_input_sentence=True,
        )
    except RuntimeError as error:
        if "smaller than required_chars" not in str(error):
            raise
        reason = str(error).rpartition("] ")[2].partition(". Increase")[0]
        refuse("--size", size, reason, "give a larger VOCABULARY")
    os.remove(f"{model}.partial.vocab")
    os.replace(f"{model}.partial.model", model)


def apply(model: Path, files: Sequence[Path]) -> None:
    """Split texts into subwords, separated by spaces, with a sentencepiece model.

    Args:
        model: file of the sentencepiece model.
        files: pairs of text and output: IN OUT [IN OUT ...].

    Raises:
        ConfigurationError: for a file that is no model of sentencepiece.
    """
    import sentencepiece

    try:
        processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    except (OSError, RuntimeError):
        from fairseq_plugins.checkpoint.tool_errors import check_sentencepiece  # whose import takes seconds

        check_sentencepiece(str(model))
        raise
    for source, target in file_pairs(files):
        write_lines(target, (" ".join(processor.encode(line, out_type=str)) for line in read_lines(source)))


def apply_gpt2(folder: Path, files: Sequence[Path]) -> None:
    """Split texts into GPT-2's byte-level subwords, written as numbers, as fairseq expects.

    Args:
        folder: folder of encoder.json and vocab.bpe.
        files: pairs of text and output: IN OUT [IN OUT ...].
    """
    from fairseq.data.encoders.gpt2_bpe_utils import get_encoder

    encoder = get_encoder(str(folder / "encoder.json"), str(folder / "vocab.bpe"))
    for source, target in file_pairs(files):
        write_lines(target, (" ".join(map(str, encoder.encode(line))) for line in read_lines(source)))
