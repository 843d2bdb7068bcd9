"""Weight formats that this processor supports."""

from typing import Any

from fairseq_plugins.decoding.engine.native import kernels

FORMS: Any = kernels().WeightFormat
HAS_HALVES = kernels().supports(FORMS.FP16_PANELS)
HAS_TILES = kernels().supports(FORMS.FP16_AMX_TILES)
HAS_INT8 = kernels().supports(FORMS.INT8_PANELS)
# Format of packed weights that float16 holds exactly.
HALVES = FORMS.FP16_PANELS if HAS_HALVES else FORMS.PANELS
