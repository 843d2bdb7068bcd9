"""Contenders: the rows of the tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from fairseq.models import FairseqEncoderDecoderModel

from fairseq_plugins.decoding.method import MethodSpec
from fairseq_plugins.decoding.methods import METHODS
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.models.blockwise_transformer import BlockwiseTransformer

BEAM_5 = "fairseq beam 5"
BEAM_1 = "fairseq beam 1"


@dataclass(frozen=True)
class Contender:
    """A row of the tables: a decoder and its settings. Rows of our methods come from their `MethodSpec`s."""

    name: str
    decoder: str  # value of --decoder
    beam: int = 1
    task_options: Mapping[str, Any] = field(default_factory=dict)  # fields of the task's config
    needs: str | None = None  # option that the row requires
    lossless: bool = False  # whether its output must equal the reference's
    compute_type: str | None = None  # option of CTranslate2
    reference: str = BEAM_1  # name of the row to compare the output with

    @property
    def int8(self) -> bool:
        """Whether weights are rounded to int8, which may change the output."""
        return bool(self.task_options.get("int8")) or self.compute_type == "int8"


CTRANSLATE2 = "ctranslate2"  # `decoder` of CTranslate2's rows
GREEDY = "greedy"

DRAFTER, BLOCKWISE = "--drafter-path", "--blockwise-path"


def _rows(spec: MethodSpec) -> list[Contender]:
    """Return the rows of one of our methods."""
    needs_drafter = spec.needs_drafter(spec.options())
    # --block-size is for the drafter: other methods use their own default.
    own_width = {} if needs_drafter else {"block_size": None}
    needs = DRAFTER if needs_drafter else None if spec.verifier_class is None else BLOCKWISE
    beam, reference = (5, BEAM_5) if spec.searches_beams else (1, BEAM_1)
    return [
        Contender(
            name,
            spec.name,
            beam,
            task_options={**own_width, **options},
            needs=needs,
            lossless=spec.is_lossless,
            reference=reference,
        )
        for name, options in spec.table_rows.items()
    ]


# Blockwise is lossless only with the verifier's weights: see `heads_are_lossless`.
CONTENDERS: tuple[Contender, ...] = (
    Contender(BEAM_5, "beam", beam=5, reference=BEAM_5),
    Contender(BEAM_1, "beam"),
    *[row for spec in METHODS if spec.build is not None for row in _rows(spec)],
)


_INT8 = tuple(
    replace(contender, name=f"{contender.name} int8", task_options={"int8": True}, lossless=False)
    for contender in CONTENDERS
    if contender.name in ("greedy", "fast-beam", "gad")
)
# Rows for a CPU.
ON_CPU = (
    Contender("gad fp32 drafts", "gad", task_options={"fp32_drafts": True}, needs=DRAFTER, lossless=True),
    *_INT8,
)


def reference_of(contender: Contender, kind: str) -> str:
    """Return the name of the row that a contender's output is compared with, in a precision.

    In half precision fairseq's own output depends on its batch size: there, that of beam 1 is our `greedy`'s.
    """
    return GREEDY if contender.reference == BEAM_1 and kind != "fp32" else contender.reference


def _ctranslate2(name: str, compute_type: str) -> tuple[Contender, ...]:
    return tuple(
        Contender(f"CTranslate2 {search} {name}", CTRANSLATE2, beam, compute_type=compute_type, reference=reference)
        for search, beam, reference in (("greedy", 1, BEAM_1), ("beam 5", 5, BEAM_5))
    )


CTRANSLATE2_ON_CPU = (*_ctranslate2("fp32", "float32"), *_ctranslate2("int8", "int8"))
CTRANSLATE2_ON_GPU = (*_ctranslate2("fp32", "float32"), *_ctranslate2("fp16", "float16"))


def lossy_note(contenders: Sequence[Contender]) -> list[str]:
    """Return a note about rows with rounded weights, if any."""
    names = ", ".join(contender.name for contender in contenders if contender.int8)
    return [f"Lossy, weights rounded to int8, the output may differ from that in fp32: {names}."] if names else []


def choose(names: str | None, among: Sequence[Contender], usual: Sequence[Contender], kind: str) -> list[Contender]:
    """Return the contenders that --decoders `names` (None: the `usual` ones) and their reference rows, in order.

    Raises ConfigurationError for a name that is not `among` the available rows.
    """
    known = [contender.name for contender in among]
    chosen = [contender.name for contender in usual] if names is None else [name.strip() for name in names.split(",")]
    for name in chosen:
        if name not in known:
            raise ConfigurationError("--decoders", name, "no such row", f"choose from: {', '.join(known)}")
    references = {reference_of(contender, kind) for contender in among if contender.name in chosen}
    return [contender for contender in among if contender.name in {*chosen, BEAM_1, *references}]


def heads_are_lossless(model: BlockwiseTransformer, verifiers: Sequence[FairseqEncoderDecoderModel]) -> bool:
    """Return whether head 1 is the identity (Stern et al., footnote 1) on a base with the verifier's weights."""
    if len(verifiers) != 1 or not model.decoder.identity_first_head:
        return False
    own = model.state_dict()
    base = verifiers[0].state_dict()
    return all(name in own and torch.equal(own[name], weight) for name, weight in base.items())
