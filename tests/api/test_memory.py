"""Memories of earlier outputs: similar sources, concurrent and killed writers, unchanged output."""

import json
import multiprocessing
import os
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins import Memory
from fairseq_plugins.api.memory import FILE
from fairseq_plugins.data.sentences import is_blank
from tests.api.released import CAPTIONS, loaded
from tests.errors import refused
from tests.strategies import DETERMINISTIC, example_count

FORK = multiprocessing.get_context("fork")


def add_one_by_one(folder: Path, name: str, count: int) -> None:
    memory = Memory(folder)
    for number in range(count):
        memory.add([f"{name} {number}"], [target_of(f"{name} {number}")])


def target_of(source: str) -> str:
    return f"target of {source} " * 20


def stored(folder: Path) -> dict[str, str]:
    """Return the contents of a memory's file."""
    lines = (folder / FILE).read_text(encoding="utf-8").splitlines()
    return {pair["source"]: pair["target"] for pair in map(json.loads, lines)}


def test_similar_sources_are_found(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "new" / "memory")
    assert memory.drafts("anything") == [] and len(memory) == 0
    memory.add(["A man rides a bike.", "Ein Hund", " "], ["Ein Mann fährt Rad.", "A dog", "nothing"])
    memory.add(["A man rides a bus.", "Ein Hund"], ["Ein Mann fährt Bus.", " "])
    assert memory.drafts("A man rides a bike.") == ["Ein Mann fährt Rad."]
    assert memory.drafts("A man rides a bike") == ["Ein Mann fährt Rad.", "Ein Mann fährt Bus."]
    assert memory.drafts(["Something else", "Ein Hund!"]) == [[], ["A dog"]]
    # The newest target counts, also for other `Memory` objects of the folder.
    other = Memory(tmp_path / "new" / "memory")
    other.add(["Ein Hund"], ["A hound"])
    assert memory.drafts("Ein Hund") == ["A hound"] and len(memory) == len(other) == 3
    size = memory.path.stat().st_size
    memory.add(["Ein Hund"], ["A hound"])
    assert memory.path.stat().st_size == size


def test_three_writers(tmp_path: Path) -> None:
    names = ("one", "two", "three")
    processes = [FORK.Process(target=add_one_by_one, args=(tmp_path, name, 60)) for name in names]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert stored(tmp_path).keys() == {f"{name} {number}" for name in names for number in range(60)}
    assert len(Memory(tmp_path)) == 180


def test_killed_writers(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    for turn in range(3):
        process = FORK.Process(target=add_one_by_one, args=(tmp_path, f"turn {turn}", 10**6))
        process.start()
        while memory.drafts(f"turn {turn} 3") != [target_of(f"turn {turn} 3")]:
            time.sleep(0.01)
        process.kill()
        process.join()
        memory.add([f"after {turn}"], ["whole"])
    outputs = stored(tmp_path)
    assert all(outputs[f"after {turn}"] == "whole" for turn in range(3))
    assert memory.drafts("turn 2 0") == [target_of("turn 2 0")]


def test_torn_lines_are_left_out(tmp_path: Path) -> None:
    """A killed process may have written any part of the last line."""
    Memory(tmp_path).add(["a source", "another"], ["its target", "end"])
    whole = (tmp_path / FILE).read_bytes()
    for size in range(len(whole) + 1):
        (tmp_path / FILE).write_bytes(whole[:size])
        before, lines = Memory(tmp_path), whole[:size].count(b"\n")
        assert len(before) == lines
        before.add(["later"], ["after it"])
        # A line that lacks only its newline is complete.
        lines += whole[size : size + 1] == b"\n"
        assert list(stored(tmp_path)) == [*["a source", "another"][:lines], "later"]
        assert len(Memory(tmp_path)) == len(before) == lines + 1


def test_a_file_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    memory.add(["a source", "another"], ["its target", "end"])
    (tmp_path / FILE).write_text('{"source": "a", "target": "b"}\n')
    assert memory.drafts("a") == ["b"] and len(memory) == 1
    # As editors do, also by one that is longer.
    (tmp_path / "new").write_text('{"source": "c", "target": "d"}\n' * 3)
    (tmp_path / "new").rename(tmp_path / FILE)
    assert memory.drafts(["a", "c"]) == [[], ["d"]]


def test_all_pairs_of_a_call_are_added_or_none(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    memory.add(["a"], ["b"])
    before, half = memory.path.read_bytes(), "A dog\ud83d runs."
    for sources, targets in ((["c", half], ["d", "e"]), (["c", "d"], ["e", half]), (["c", "d"], ["e"])):
        with refused("sources|targets"):
            memory.add(sources, targets)
        assert memory.path.read_bytes() == before and len(memory) == 1


HALF = '{"source": "\\ud83d", "target": "a"}'


@pytest.mark.parametrize("line", ["{", "[]", '{"source": "a", "target": 1}', "\xff", "[" * 100_000, HALF])
def test_other_files_are_refused(tmp_path: Path, line: str) -> None:
    good = '{"source": "a", "target": "b"}\n'
    (tmp_path / FILE).write_bytes(f"{good}{line}\n".encode("latin-1"))
    with refused("line 2 is no output; remove it"):
        Memory(tmp_path)
    for folder in (tmp_path / FILE, tmp_path / "folder"):
        (tmp_path / "folder" / FILE).mkdir(parents=True, exist_ok=True)
        with refused("memory.jsonl: (cannot be read|is not a regular file)"):
            Memory(folder)


def test_nothing_of_the_user_is_cut_off(tmp_path: Path) -> None:
    """Only what begins as our lines do is part of one."""
    for text in ("notes without an end of line", '{"source": "a", "target": "b"}\n{"target": "', "{ ", "\x80\x05"):
        (tmp_path / FILE).write_text(text)
        with refused(f"line {1 + text.count(chr(10))} is no output; remove it"):
            Memory(tmp_path).add(["a source"], ["its target"])
        assert (tmp_path / FILE).read_text() == text


def test_a_pipe_or_a_device_is_no_memory(tmp_path: Path) -> None:
    """Reading them would not end."""
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / FILE)
    (tmp_path / FILE).symlink_to("/dev/zero")
    for folder in (tmp_path, tmp_path / "pipe"):
        with refused("is not a regular file"):
            Memory(folder)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@settings(DETERMINISTIC, max_examples=example_count(50))
@given(calls=st.lists(st.dictionaries(TEXTS, TEXTS, max_size=4), max_size=6))
def test_a_memory_is_a_dictionary(calls: list[dict[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        memories, expected = [Memory(folder), Memory(folder)], dict[str, str]()
        for turn, pairs in enumerate(calls):
            memories[turn % 2].add([*pairs], [*pairs.values()])
            expected |= dict(pair for pair in pairs.items() if not any(map(is_blank, pair)))
            for memory in (*memories, Memory(folder)):
                assert memory.drafts([*expected]) == [[target] for target in expected.values()]
                assert len(memory) == len(expected)


@settings(DETERMINISTIC, max_examples=example_count(20))
@given(
    sources=st.lists(st.sampled_from([*CAPTIONS, "A man is riding a horse.", "Two cats play in the snow"]), max_size=5),
    targets=st.lists(st.one_of(TEXTS, st.sampled_from(["Zwei Hunde spielen", "ein " * 300])), min_size=5, max_size=5),
)
def test_the_output_is_that_without_memory(sources: list[str], targets: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        memory = Memory(folder)
        memory.add(sources, targets[: len(sources)])
        found = loaded("reuse", fixed_width=True).translate(CAPTIONS, drafts=memory.drafts(CAPTIONS))
        assert found == loaded("greedy").translate(CAPTIONS)


def test_a_memory_saves_iterations(tmp_path: Path) -> None:
    model, memory = loaded("reuse", fixed_width=True), Memory(tmp_path)
    memory.add(CAPTIONS[:2], model.translate(CAPTIONS[:2]))
    edited = ["A man is riding a bicycle .", "Two dogs play in the snow near a blue house ."]
    without = model.translate(edited)
    iterations = model.statistics.iterations
    assert model.translate(edited, drafts=memory.drafts(edited)) == without
    assert model.statistics.iterations < iterations / 2
