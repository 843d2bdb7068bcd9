"""JSON and arguments of declared types; every reader of JSON refuses what is nested too deeply."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import numpy
import pytest
import torch
from msgspec import Meta

from fairseq_plugins.conversion.settings import LoadSettings
from fairseq_plugins.decoding.recording.trace import read_trace
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.draft_files import read_drafts
from fairseq_plugins.shared.shards import read_origin
from fairseq_plugins.shared.typed_values import WrongValue, checked, parse_json, read_json

DEEP = "[" * 100_000


class Values(TypedDict, total=False):
    count: Annotated[int, Meta(ge=1)]
    share: Annotated[float, Meta(ge=0, le=1)] | None
    names: list[str]
    order: Literal["sorted", "random"]


@pytest.mark.parametrize(
    ("values", "name", "remedy"),
    [
        ({"count": "1"}, "count", "give a whole number, not str"),
        ({"count": 0}, "count", "give a whole number of at least 1"),
        ({"count": True}, "count", "give a whole number, not bool"),
        ({"share": 1.5}, "share", "give a number of at most 1"),
        ({"share": float("nan")}, "share", "give a number of at least 0"),
        ({"names": "a"}, "names", "give a list, not str"),
        ({"order": "x"}, "order", "give sorted or random"),
        ({"names": ["a", None]}, "names", "give text, not None"),
    ],
)
def test_wrong_values_are_named(values: dict[str, Any], name: str, remedy: str) -> None:
    with pytest.raises(WrongValue) as error:
        checked(values, Values)
    assert (error.value.name, error.value.remedy) == (name, remedy)


def test_numbers_of_libraries() -> None:
    given = {"count": numpy.int64(3), "share": torch.tensor(0.5), "other": object()}
    assert checked(given, Values) == {"count": 3, "share": 0.5}


@pytest.mark.parametrize("text", [DEEP, "NaN", '"\\ud800"', "{", "", '{"count": 0}', b"\xff"])
def test_what_is_no_json_of_its_type(text: str | bytes, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^.+$"):
        parse_json(text, Values)
    (tmp_path / "file").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigurationError, match="^.*/file: cannot be read as JSON .*; do this$"):
        read_json(tmp_path / "file", Values, "do this")


READERS: dict[str, Callable[[Path], object]] = {
    "trace": lambda file: read_trace(str(file)),
    "shard": read_origin,
    "drafts": lambda file: read_drafts(str(file)),
    "load.json": lambda file: LoadSettings.read(file.rename(file.with_name("load.json")).parent),
}


@pytest.mark.parametrize("reader", READERS)
def test_readers_of_json_refuse_what_is_nested_too_deeply(reader: str, tmp_path: Path) -> None:
    file = tmp_path / "file.jsonl"
    file.write_text(f"{DEEP}\n")
    with pytest.raises(ConfigurationError) as error:
        READERS[reader](file)
    assert "\n" not in str(error.value)
