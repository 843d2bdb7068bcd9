"""fairseq's own search, untouched."""

from fairseq_plugins.decoding.method import MethodSpec

METHODS = [
    MethodSpec(
        name="beam",
        summary="fairseq's own search",
        drafts="none: fairseq's own `SequenceGenerator`",
        accepts="-",
        paper="baseline",
        order=0,
    )
]
