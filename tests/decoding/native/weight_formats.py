"""Weight formats that this processor supports."""

from typing import Any

from fairseq_plugins.decoding.native import kernels

FORMATS: Any = kernels().WeightFormat
HAS_FP16 = kernels().supports(FORMATS.FP16_PANELS)
TILES = (FORMATS.FP32_AMX_TILES, FORMATS.FP16_AMX_TILES)
HAS_TILES = kernels().supports(FORMATS.FP16_AMX_TILES)
# Format of packed weights that float16 holds exactly.
FP16_FORMAT = FORMATS.FP16_PANELS if HAS_FP16 else FORMATS.PANELS
# Format of large packed weights that it does not hold.
FP32_FORMAT = FORMATS.FP32_AMX_TILES if HAS_TILES else FORMATS.PANELS
