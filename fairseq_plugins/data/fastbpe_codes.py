"""`--bpe fastbpe_codes`: apply codes of fastBPE, such as those of fairseq's WMT19 models, without fastBPE."""

import io
from dataclasses import dataclass
from pathlib import Path

from fairseq.data.encoders import register_bpe
from fairseq.data.encoders.subword_nmt_bpe import SubwordNMTBPE, SubwordNMTBPEConfig
from subword_nmt.apply_bpe import BPE

from fairseq_plugins.errors import ConfigurationError


@dataclass
class FastBPECodesConfig(SubwordNMTBPEConfig):
    """Options of `--bpe fastbpe_codes`: those of subword_nmt."""


@register_bpe("fastbpe_codes", dataclass=FastBPECodesConfig)
class FastBPECodes(SubwordNMTBPE):
    """Splits words as fastBPE does. Lines of its codes are pairs as in subword-nmt 0.2, each followed by a count."""

    def __init__(self, cfg: FastBPECodesConfig) -> None:
        pairs = [" ".join(line.split()[:2]) for line in Path(cfg.bpe_codes).read_text(encoding="utf-8").splitlines()]
        self.bpe = BPE(io.StringIO("\n".join(["#version: 0.2", *pairs])), separator=cfg.bpe_separator)
        self.bpe_symbol = cfg.bpe_separator + " "


def is_fastbpe(file: Path) -> bool:
    """Return whether codes are fastBPE's (three columns), not subword-nmt's (two); refuse any other file."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"subwords {file}: is not text; a sentencepiece model is named *.model") from error
    columns = [len(line.split(" ")) for line in lines if line and not line.startswith("#version:")]
    for kind in (2, 3):
        if columns and set(columns) == {kind}:
            return kind == 3
    raise ConfigurationError(
        f"subwords {file}: is neither subword-nmt's codes (two columns) nor fastBPE's (three); give a file of codes "
        "or a sentencepiece model (*.model)"
    )
