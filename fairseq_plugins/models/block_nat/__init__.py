"""The NAT drafter: a Transformer whose decoder reads a prefix and fills a block of masks in one pass.

The prefix consists of tokens, or of the verifier's states (`--drafter-context features`).
"""

from fairseq_plugins.models.block_nat.architectures import block_nat_base
from fairseq_plugins.models.block_nat.decoder import BlockNatDecoder
from fairseq_plugins.models.block_nat.model import BlockNat
from fairseq_plugins.shared.fingerprints import dictionary_fingerprint

__all__ = ["BlockNat", "BlockNatDecoder", "block_nat_base", "dictionary_fingerprint"]
