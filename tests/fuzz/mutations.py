"""Ways to break a file: its bytes, its structure, its values."""

import hashlib
import json
import random
import re
import sqlite3
import struct
import zipfile
import zlib
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import polars as pl

from campo_onnx.measure.profile import sealed
from tests.fuzz.broken_models import protobuf
from tests.fuzz.hostile import HOSTILE_FLOATS, HOSTILE_INTS, HOSTILE_TEXTS


def mutate(path: Path, rng: random.Random) -> str:
    """Break a file in place; returns how."""
    kinds: list[Callable[[Path, random.Random], str]] = [_bytes]
    kinds += [_STRUCTURAL[path.suffix]] * 2 if path.suffix in _STRUCTURAL else []
    return rng.choice(kinds)(path, rng)


# --- bytes ---------------------------------------------------------------------------------------


def _bytes(path: Path, rng: random.Random) -> str:
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(7):
            case 0 if data:
                data[at % len(data)] ^= 1 << rng.randrange(8)
            case 1 if data:
                data[at % len(data)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                del data[at : at + rng.choice((1, 4, 100))]
            case 3:
                data[at:at] = rng.randbytes(rng.choice((1, 4, 100)))
            case 4:
                start = rng.randrange(len(data) + 1)
                data[at:at] = data[start : start + rng.choice((4, 64, 1000))]
            case 5:
                data[at : at + 8] = struct.pack("<q", rng.choice(HOSTILE_INTS))
            case _ if rng.random() < 0.2:
                del data[at:]
    path.write_bytes(data)
    return "bytes"


# --- values --------------------------------------------------------------------------------------


def _value(rng: random.Random) -> Any:
    deep: Any = 0
    for _ in range(rng.choice((5, 200, 100_000))):
        deep = [deep]
    plain = (None, True, [], {}, [[]], {"a": 1}, 10**400, deep)
    return rng.choice((*plain, *HOSTILE_TEXTS, *HOSTILE_INTS, *HOSTILE_FLOATS))


def _json(path: Path, rng: random.Random) -> str:
    document = json.loads(path.read_text(encoding="utf-8"))
    done = [_change_plain(document, rng) for _ in range(rng.choice((1, 1, 3)))]
    if "decisions_digest" in document and rng.random() < 0.7:
        with suppress(ValueError, RecursionError):
            _sign(document)
    path.write_text(_dumped(document), encoding="utf-8", errors="surrogatepass")
    return ", ".join(done)


def _lines(path: Path, rng: random.Random) -> str:
    """Change one of several documents, a line each."""
    lines = path.read_text(encoding="utf-8").splitlines()
    at = rng.randrange(len(lines))
    document = json.loads(lines[at])
    done = _change_plain(document, rng)
    lines[at] = _dumped(document)
    # Half a last line is what a kill leaves, and is cut off; one that is whole stays.
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogatepass")
    return done


def _sign(document: dict[str, Any]) -> None:
    """Give a plan the digest of what it now says, as somebody with this source could."""
    del document["decisions_digest"]
    payload = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    document["decisions_digest"] = hashlib.blake2b(payload, digest_size=16).hexdigest()


def _dumped(value: Any) -> str:
    """As JSON, however deep it is nested."""
    try:
        return json.dumps(value)
    except RecursionError:
        return "[" * 100_000 + "]" * 100_000


def _change_plain(value: Any, rng: random.Random) -> str:
    where = "$"
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return where
        key = rng.choice(keys)
        inner = value[key]
        where += f".{key}"
        if isinstance(inner, dict | list) and inner and rng.random() < 0.85:
            value = inner
            continue
        match rng.randrange(5):
            case 0:
                del value[key]
            case 1 if isinstance(value, dict):
                value[rng.choice(HOSTILE_TEXTS)] = inner
            case 2:
                value[key] = value[rng.choice(keys)]
            case _:
                value[key] = _value(rng)
        return where


def _script(path: Path, rng: random.Random) -> str:
    """Change one line of a program, or what it returns."""
    lines = path.read_text(encoding="utf-8").splitlines()
    at = rng.randrange(len(lines))
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    thing = rng.choice(
        ("None", "()", "torch.zeros(0)", "torch.zeros(2**40)", "float('nan')", "object()", "make", "[1, 'a']",
         "exit(1)", "1 / 0", "lambda *a: None", "torch.nn.Identity()")
    )  # fmt: skip
    lines[at] = rng.choice(
        (
            "",
            f"{indent}return {thing}",
            f"{indent}{thing}",
            f"{indent}raise {rng.choice(('RuntimeError', 'ImportError', '7'))}",
            re.sub(r"\d+", str(rng.choice((0, 1, -1, 3, 10**30))), lines[at], count=1),
            re.sub(r"\([^()]*\)", f"({thing})", lines[at], count=1),
            lines[rng.randrange(len(lines))],
        )
    )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return f"line {at + 1}: {lines[at].strip()}"


def _toml(path: Path, rng: random.Random) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    at = rng.randrange(len(lines))
    key = lines[at].partition("=")[0].strip(" []") or "a"
    text = rng.choice(HOSTILE_TEXTS).encode("unicode_escape").decode().replace('"', "")
    lines[at] = rng.choice(
        (
            f"{key} = {rng.choice(HOSTILE_INTS)}",
            f"{key} = {rng.choice(('nan', 'inf', '-1.5', '1e400', 'true', '1979-05-27', '9' * 5000))}",
            f'{key} = ["{text}"]',
            f"{key} = '{text}'",
            f"{key} = " + "[" * 5000 + "]" * 5000,
            f"{key} = {{}}",
            ".".join(["a"] * rng.choice((3, 200_000))) + " = 1",
            f"[{key}]",
            f"[[{key}]]",
            "",
            lines[rng.randrange(len(lines))],
        )
    )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return f"line {at + 1}"


def _npz(path: Path, rng: random.Random) -> str:
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(list(members))
    header = members[name][10:128].decode("latin-1")
    shape = rng.choice(("(1000000, 1000000)", "(-1,)", "(2**70,)", "()", "(99999999999999999999,)", "(0,)"))
    dtype = rng.choice(("'|O'", "'<f8'", "'<U999999999'", "[('a','<f4')]", "'<i1'", "'|V0'", "'<M8[s]'"))
    how = rng.choice(("shape", "dtype", "zeros", "other", "extra", "magic", "missing", "method"))
    match how:
        case "shape":
            changed = header[: header.index("'shape'")] + f"'shape': {shape}, }}"
            members[name] = _npy(changed, members[name][128:])
        case "dtype":
            rest = header[header.index("'fortran_order'") :].rstrip()
            members[name] = _npy(f"{{'descr': {dtype}, {rest}", members[name][128:])
        case "zeros":
            members[name] = members[name][:128] + bytes(50_000_000)
        case "other":
            members[name.removesuffix(".npy")] = members.pop(name) if rng.random() < 0.5 else b"text"
        case "extra":
            members[rng.choice(HOSTILE_TEXTS[2:7]) + ".npy"] = members[name]
        case "magic":
            members[name] = b"\x93NUMPY" + bytes([rng.randrange(5), 0]) + members[name][8:]
        case "missing":
            del members[name]
    method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    with zipfile.ZipFile(path, "w", method) as archive:
        for key, data in members.items():
            archive.writestr(key, data)
    return how


def _npy(header: str, data: bytes) -> bytes:
    text = header.encode("latin-1") + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def _parquet(path: Path, rng: random.Random) -> str:
    table, metadata = pl.read_parquet(path), pl.read_parquet_metadata(path)
    key = "campo-onnx:profile"
    column = rng.choice(table.columns)
    how = rng.choice(("drop", "cast", "values", "rows", "metadata"))
    match how:
        case "drop":
            table = table.drop(column)
        case "cast":
            table = table.with_columns(pl.lit(rng.choice((1, "x", None, [1], 1.5, b"x"))).alias(column))
        case "values":
            table = table.with_columns(pl.lit(rng.choice(HOSTILE_FLOATS)).alias("fp32_us"))
        case "rows":
            table = rng.choice((table.head(0), pl.concat([table] * 50)))
        case _:
            document = json.loads(metadata[key])
            _change_plain(document, rng)
            metadata[key] = _dumped(document).encode(errors="replace").decode()
    table.write_parquet(path, metadata={k: v for k, v in metadata.items() if k.startswith("campo-onnx")})
    path.write_bytes(sealed(path.read_bytes()))
    return f"{how} {column}"


def _sqlite(path: Path, rng: random.Random) -> str:
    value = rng.choice((*HOSTILE_TEXTS, *HOSTILE_FLOATS, *HOSTILE_INTS, None, b"\xff", '{"a": 1}'))
    column = rng.choice(("machine", "signature", "execution", "median_us", "spread_us", "repeats"))
    forever = "WITH RECURSIVE t(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM t)"
    how = rng.choice(("cell", "cell", "cell", "view", "drop", "version", "application", "trigger", "table"))
    script = {
        "view": "DROP TABLE timings; CREATE VIEW timings AS "
        f"{forever} SELECT '' machine, '' signature, '' execution, i median_us, 0 spread_us, 1 repeats "
        "FROM t",
        "drop": "DROP TABLE timings",
        "version": f"PRAGMA user_version = {rng.choice((0, 2, -1, 2**31 - 1))}",
        "application": f"PRAGMA application_id = {rng.choice((0, 1, -1))}",
        "trigger": "CREATE TRIGGER x AFTER INSERT ON timings BEGIN DELETE FROM timings; END",
        "table": "DROP TABLE timings; CREATE TABLE timings (machine)",
    }
    with closing(sqlite3.connect(path)) as store:
        if how == "cell":
            with suppress(sqlite3.Error, UnicodeEncodeError, OverflowError):
                first = " WHERE signature = (SELECT min(signature) FROM timings)"
                where = rng.choice(("", first))
                store.execute(f"UPDATE OR IGNORE timings SET {column} = ?{where}", (value,))
        else:
            store.executescript(script[how])
        store.commit()
    return f"{how} {column}"


def _safetensors(path: Path, rng: random.Random) -> str:
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    where = _change_plain(header, rng)
    if rng.random() < 0.5 and isinstance(facts := header.get("__metadata__"), dict):
        with suppress(Exception):  # what the checksum is taken of may be gone
            facts["checksum"] = _checksum_of(facts, data[8 + length :], header)
    text = _dumped(header).encode(errors="surrogatepass")
    stated = rng.choice((len(text), len(text), len(text), 0, 2**63, 2**40))
    path.write_bytes(struct.pack("<Q", stated) + text + data[8 + length :])
    return where


def _checksum_of(facts: dict[str, Any], data: bytes, header: dict[str, Any]) -> str:
    """Take the checksum that a checkpoint with this content has."""
    value = zlib.crc32(
        json.dumps({k: v for k, v in facts.items() if k != "checksum"}, sort_keys=True).encode()
    )
    for name in sorted(header.keys() - {"__metadata__"}):
        begin, end = header[name]["data_offsets"]
        value = zlib.crc32(data[begin:end], zlib.crc32(name.encode(), value))
    return f"{value:08x}"


_STRUCTURAL = {
    ".onnx": protobuf,
    ".json": _json,
    ".jsonl": _lines,
    ".toml": _toml,
    ".npz": _npz,
    ".parquet": _parquet,
    ".safetensors": _safetensors,
    ".sqlite": _sqlite,
    ".py": _script,
}
