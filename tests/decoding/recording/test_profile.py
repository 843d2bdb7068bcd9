"""Profiles: every part is measured, the parts sum to the total, and the output is unchanged."""

import itertools
import re
import time

import pytest

from fairseq_plugins.decoding.recording.profile import PARTS, Profile
from fairseq_plugins.decoding.reference.engine import Engine
from tests.conftest import Corpus
from tests.support import Options, ids, make_all, make_drafter, make_generator, run_in_process


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_parts_sum_to_the_total(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task, verifier, sample = make_all(40, 0, [3, 8, 5])
    drafter = make_drafter(task, block_size=4)
    how = Options("gad", block_size=4)
    generator, _ = make_generator([verifier], task, how, drafter, engine=Engine() if backend == "torch" else None)
    expected = ids(generator.generate([verifier], sample))
    assert generator.backend.name == backend
    # More for each reading than the kernels need: their parts are not scaled, and no other process counts.
    ticks = itertools.count(step=1000.0)
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    profile = Profile()
    profile.attach(generator)
    start = time.perf_counter()
    assert ids(generator.generate([verifier], sample)) == expected
    elapsed = time.perf_counter() - start
    assert profile.sentences == 3
    assert list(profile.seconds) == list(PARTS) and all(seconds > 0 for seconds in profile.seconds.values())
    assert 0.5 * elapsed < sum(profile.seconds.values()) <= elapsed
    *parts, total = profile.rows()
    assert total[0] == "total" and total[2] == pytest.approx(100)
    assert sum(part[1] for part in parts) == pytest.approx(total[1])


def test_beam_search_has_a_profile() -> None:
    """The kernels' counters are read: the search is part of the verifier's time."""
    task, model, sample = make_all(40, 0, [3, 8, 5])
    generator, _ = make_generator([model], task, Options("fast-beam"), beam_size=3)
    profile = Profile()
    profile.attach(generator)
    generator.generate([], sample)
    assert generator.backend.name == "native"
    used = {name for name, seconds in profile.seconds.items() if seconds > 0}
    assert used == {"verifier's encoder", "verifier", "other"}


def test_command_line(corpus: Corpus) -> None:
    """--profile prints the table; fairseq's own search has none."""
    common = f"{corpus.data} --task spec_dec --path {corpus.verifier} --batch-size 12 --cpu"
    plain = run_in_process("generate", f"{common} --decoder greedy")
    profiled = run_in_process("generate", f"{common} --decoder greedy --profile")
    hypotheses = re.compile(r"^H-.*$", re.MULTILINE)
    assert hypotheses.findall(plain.stdout) == hypotheses.findall(profiled.stdout) != []
    assert "ms per sentence" not in plain.stderr
    table = profiled.stderr[profiled.stderr.index("| part") :]
    assert [line.split("|")[1].strip() for line in table.splitlines()[2:9]] == [*PARTS, "total"]
    beam = run_in_process("generate", f"{common} --profile")
    assert "--profile: fairseq's own search is not measured" in beam.stderr
