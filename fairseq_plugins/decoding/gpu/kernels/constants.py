"""Numbers with a name: an enumeration for the host, and the same numbers for kernels, which may use no enumeration."""

from enum import IntEnum

import triton.language as tl


class InputKind(IntEnum):
    """Input of a product.

    PLAIN: the rows as they are.
    POST_NORM: the residual sum, normalised, which becomes the new residual.
    PRE_NORM: the residual sum, which is kept as it is and normalised for the product only.
    SUM: the residual sum without normalisation.
    """

    PLAIN = 0
    POST_NORM = 1
    PRE_NORM = 2
    SUM = 3


class OutputKind(IntEnum):
    """Output of a product.

    STORE: with bias and activation.
    PARTS: sums of a part of the inputs, in fp32.
    QUERY_KEY_VALUE: the query; key and value go to their cache slots.
    SOURCE_KEY_VALUE: keys and values of all layers go to the slots of their sentences.
    """

    STORE = 0
    PARTS = 1
    QUERY_KEY_VALUE = 2
    SOURCE_KEY_VALUE = 3


class Activation(IntEnum):
    """Activation functions."""

    NONE = 0
    RELU = 1
    GELU = 2
    SILU = 3


class Lookup(IntEnum):
    """Where to copy from, after a suffix of the output is matched in a text.

    UNIQUE: the source; only a match that occurs once counts (Aggressive Decoding, Algorithm 1).
    NEAREST: given drafts; long matches near the expected position score best.
    """

    UNIQUE = 0
    NEAREST = 1


PLAIN, POST_NORM, PRE_NORM, SUM = (tl.constexpr(int(kind)) for kind in InputKind)
STORE, PARTS, QUERY_KEY_VALUE, SOURCE_KEY_VALUE = (tl.constexpr(int(kind)) for kind in OutputKind)
_, RELU, GELU, SILU = (tl.constexpr(int(kind)) for kind in Activation)
UNIQUE, NEAREST = (tl.constexpr(int(lookup)) for lookup in Lookup)

# In place of a number of needed rows: all rows of a sentence that is being decoded.
ALL_ROWS = tl.constexpr(2**30)

# Columns of limits on the device, int32: special symbols, lengths, --sampling-topk. All sentences share `Batch.limits`;
# kernels of one sentence read its row of `Batch.place_limits`, whose columns are as many as stand before TOKENS; in
# place of --sampling-topk it has the number of first tokens that the prefix forces without a gap.
PAD, UNK, EOS, MIN_LEN, MAX_LEN, PREFIX, FIRST, TOPK = (tl.constexpr(number) for number in range(8))
LEADING = TOPK
# Which tokens a row must not choose: bits of a row, and of each token, in the limits of a batch from a column on. A
# token is forbidden if both have a bit.
TOKENS = tl.constexpr(8)
ALWAYS, TOO_EARLY, AT_BEGINNING = (tl.constexpr(bit) for bit in (1, 2, 4))
# Columns of its penalties, fp32: of the unknown word, the temperature, --sampling-topp.
UNK_PENALTY, TEMPERATURE, TOPP = (tl.constexpr(number) for number in range(3))

# Columns of the status of an iteration: emitted, accepted and drafted tokens, whether the sentence has ended, and what
# is wrong: nothing (0), scores that are NaN, no hypothesis that may end.
EMITTED, ACCEPTED, DRAFTED, HAS_ENDED, ERROR = (tl.constexpr(number) for number in range(5))
STATUS = tl.constexpr(5)
SCORES_ARE_NAN, EOS_IS_FORBIDDEN = (tl.constexpr(number) for number in (1, 2))
