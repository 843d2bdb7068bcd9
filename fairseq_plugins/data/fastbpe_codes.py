"""`--bpe fastbpe_codes`: apply codes of fastBPE, such as those of fairseq's WMT19 models, without fastBPE."""

import io
from pathlib import Path

from fairseq.data.encoders import register_bpe
from fairseq.data.encoders.subword_nmt_bpe import SubwordNMTBPE, SubwordNMTBPEConfig
from subword_nmt.apply_bpe import BPE

from fairseq_plugins.errors import ConfigurationError


@register_bpe("fastbpe_codes", dataclass=SubwordNMTBPEConfig)
class FastBPECodes(SubwordNMTBPE):
    """Splits words as fastBPE does, with the options of `--bpe subword_nmt`.

    Lines of its codes are pairs as in subword-nmt 0.2, each followed by a count.
    """

    def __init__(self, cfg: SubwordNMTBPEConfig) -> None:
        pairs = [(left, right) for left, right, _ in (line.split(" ") for line in _lines(Path(cfg.bpe_codes)))]
        self.bpe = BPE(io.StringIO("#version: 0.2\na b\n"), separator=cfg.bpe_separator)
        # In place of reading a file, where a carriage return ends a symbol.
        self.bpe.bpe_codes = {pair: rank for rank, pair in enumerate(pairs)}
        self.bpe.bpe_codes_reverse = {left + right: (left, right) for left, right in self.bpe.bpe_codes}
        self.bpe_symbol = cfg.bpe_separator + " "


def is_fastbpe(file: Path) -> bool:
    """Return whether codes are fastBPE's (three columns), not subword-nmt's (two).

    Raises ConfigurationError for any other file.
    """
    try:
        lines = _lines(file)
    except UnicodeDecodeError as error:
        raise ConfigurationError("--subwords", file, "is not text", "a sentencepiece model is named *.model") from error
    columns = {len(line.split(" ")) for line in lines if not line.startswith("#version:")}
    for kind in (2, 3):
        if columns == {kind}:
            return kind == 3
    problem = "is neither subword-nmt's codes (two columns) nor fastBPE's (three)"
    raise ConfigurationError("--subwords", file, problem, "give a file of codes or a sentencepiece model (*.model)")


def _lines(file: Path) -> list[str]:
    """Return the lines that are not empty. Symbols may contain every character but the line feed and the space."""
    return [line for line in file.read_bytes().decode("utf-8").split("\n") if line]
