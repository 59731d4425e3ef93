"""States of the files of a folder, for those who ask whether one was lost or torn."""

import hashlib
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from campo_onnx.errors import CampoError
from campo_onnx.ir.exporter import export_model
from campo_onnx.ir.importer import import_model
from campo_onnx.training.checkpoint import load_checkpoint
from tests.fuzz.sandbox import in_child


def make_old_outputs(folder: Path) -> None:
    """Put outputs of earlier runs there: a model with weights of its own beside it, and others."""
    model = onnx.load(folder / "outside.onnx")
    for tensor in model.graph.initializer:
        if (array := numpy_helper.to_array(tensor)).dtype == np.float32:
            tensor.CopyFrom(numpy_helper.from_array(array + np.float32(1), tensor.name))
    onnx.save(model, folder / "old.onnx", save_as_external_data=True, location="old.bin", size_threshold=1024)
    imported = import_model(folder / "old.onnx")
    export_model(imported.model, folder / "out.onnx", folder=folder)
    for name in ("old.onnx", "old.bin"):
        (folder / name).unlink()
    for name in ("out.json", "out.xml", "out.svg", "out.html"):
        (folder / name).write_text("old", encoding="utf-8")
    shutil.copy(folder / "state.safetensors", folder / "out.safetensors")
    if (folder / "profile.parquet").exists():
        shutil.copy(folder / "profile.parquet", folder / "out.parquet")


def states(folder: Path) -> dict[str, str]:
    """State of each file; of what differs from run to run, only that it is whole."""
    return {
        path.name: _known_state(path)
        for path in sorted(folder.iterdir())
        if path.is_file() and not path.name.startswith((".", "out.onnx.")) and not path.name.endswith(_BESIDE)
    }


_BESIDE = ("-wal", "-shm", "-journal")
_known: dict[tuple[str, bytes], str] = {}


def _known_state(path: Path) -> str:
    """State of a file; that of the same bytes is worked out once."""
    if path.suffix == ".sqlite":  # others lie beside it that count
        return in_child(lambda: _store_state(path))
    key = path.name, hashlib.sha256(path.read_bytes()).digest()
    if key not in _known:
        _known[key] = _state(path)
    return _known[key]


def _state(path: Path) -> str:
    if path.suffix == ".onnx":
        return in_child(lambda: import_model(path).digest)
    if path.suffix == ".safetensors":
        return in_child(lambda: _checkpoint_state(path))
    data = path.read_bytes()
    if data == b"old":
        return "old"
    match path.suffix:
        case ".json":
            json.loads(data)
            return "whole"
        case ".xml" | ".svg" | ".html":
            return "whole" if data.rstrip().endswith(b">") else f"{len(data)} bytes"
        case ".parquet":
            return "whole" if data.endswith(b"PAR1") else f"{len(data)} bytes"
    return f"{len(data)} bytes"


def _store_state(path: Path) -> str:
    """Whether a store is sound and has the timings that it came with."""
    with closing(sqlite3.connect(path)) as store:
        (verdict,) = store.execute("PRAGMA integrity_check").fetchone()
        tables = store.execute("SELECT count(*) FROM sqlite_master WHERE name = 'timings'").fetchone()[0]
        count = store.execute("SELECT count(*) FROM timings").fetchone()[0] if tables else 0
    enough = path.name == "new.sqlite" or count >= _TIMINGS
    return "sound" if verdict == "ok" and enough else f"{verdict}, {count} timings"


_TIMINGS = 90
"""At least this many are in every store of the campaign."""


def _checkpoint_state(path: Path) -> str:
    try:
        return f"step {load_checkpoint(path).steps}"
    except CampoError as error:
        return str(error)
