"""Popular models with fairseq's own tasks: our decoders give the token ids of fairseq's search."""

from itertools import product
from pathlib import Path

import pytest

from fairseq_plugins import wrap
from fairseq_plugins.errors import ConfigurationError
from tests.families import FAMILIES, MAX_LEN, PAGE, generate, table
from tests.options_page import marked

SIZES = (1, 7)
# Decoders that also run without the compiled kernels.
REFERENCE_TOO = ("greedy", "gad", "fast-beam")
pytestmark = pytest.mark.filterwarnings("ignore")  # of hydra and numpy, caused by fairseq


@pytest.mark.parametrize("name", FAMILIES)
def test_families_decode_as_fairseq_does(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    task = family.set_up(tmp_path)
    model, _ = family.model(task)
    expected = {(beam, size): generate(family, task, model, beam, size) for beam in (1, 5) for size in SIZES}
    lengths = {len(output[0]) for output in expected[1, 7]}
    assert len(lengths) > 3 and min(lengths) < MAX_LEN, lengths
    drafter = {"drafter": tmp_path / "drafter.pt", "fixed_width": True}
    if "gad" in family.decoders:
        family.train_drafter(task, model, tmp_path / "drafter.pt")
    for decoder, beams in family.decoders.items():
        given = drafter if decoder == "gad" else {}
        runs = [(given, SIZES)]
        if decoder in REFERENCE_TOO:
            runs.append(({**given, "no_compiled_steps": True}, SIZES[1:]))  # one sentence at a time takes longest
        for options, sizes in runs:
            wrap(task, decoder=decoder, **options)
            for beam, size in product(beams, sizes):
                output = generate(family, task, model, beam, size)
                assert output == expected[beam, size], (decoder, options, beam, size)


def test_the_page_has_the_table_of_what_is_tested() -> None:
    assert marked(PAGE.read_text(encoding="utf-8"), "families")[2] == table(), "write it anew: python -m tests.families"


def test_source_copies_need_a_source_of_tokens(tmp_path: Path) -> None:
    family = FAMILIES["s2t"]
    task = family.set_up(tmp_path)
    model, _ = family.model(task)
    wrap(task, decoder="iad")
    message = 'decoder="iad": copies source tokens, and this task.s source has none'
    with pytest.raises(ConfigurationError, match=message):
        generate(family, task, model, 1, 7)
