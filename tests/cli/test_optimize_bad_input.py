"""``campo-onnx optimize`` given what is wrong: one message, the exit code, and nothing written."""

import os
import random
from functools import partial
from pathlib import Path

import onnx
import pytest

MLP = Path(__file__).parent.parent / "data" / "mlp.onnx"


@pytest.fixture
def optimize(program):
    return partial(program, "optimize")


def snapshot(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


@pytest.fixture
def bad(tmp_path):
    """A folder full of things that go wrong."""
    text = onnx.parser.parse_model
    payload = MLP.read_bytes()
    files = {
        "good.onnx": payload,
        "empty.onnx": b"",
        "truncated.onnx": payload[: len(payload) // 2],
        "random.onnx": random.Random(0).randbytes(4000),
        "text.onnx": b"This is a text file.\n" * 20,
        "old.onnx": text(
            '<ir_version: 3, opset_import: ["": 6]> g (float[2] x) => (float[2] y) { y = Dropout(x) }'
        ).SerializeToString(),
        "integers.onnx": text(
            '<ir_version: 8, opset_import: ["": 17]> g (int64[2] x) => (int64[2] y) { y = Neg(x) }'
        ).SerializeToString(),
        "symbolic.onnx": text(
            '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) { y = Relu(x) }'
        ).SerializeToString(),
        "invalid.onnx": text(
            '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (int64[2] y) { y = Relu(x) }'
        ).SerializeToString(),
        "existing.onnx": b"precious",
        "existing.json": b"precious",
        "lists.toml": b"this is [not TOML",
        "wrong.toml": b'extends = "campo"\n[allow]\nops = ["Loop"]\n',
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder").mkdir()
    return tmp_path


BAD = [
    # words, exit code, what the message must hold
    ("missing.onnx", 2, ["missing.onnx does not exist"]),
    ("folder", 2, ["folder is a folder", "Name the .onnx file"]),
    ("empty.onnx", 3, ["empty.onnx is empty"]),
    ("truncated.onnx", 3, ["truncated.onnx is not an ONNX model", "truncated", "Export or copy"]),
    ("random.onnx", 3, ["random.onnx is not an ONNX model"]),
    ("text.onnx", 3, ["text.onnx is not an ONNX model"]),
    ("invalid.onnx", 3, ["invalid.onnx is not a valid ONNX model", "elem type"]),
    ("old.onnx", 4, ["old.onnx uses opset 6", "the operator Dropout changed", "Export at opset 20"]),
    ("integers.onnx", 4, ["integers.onnx has no tensor in FP32, FP16 or BF16"]),
    ("symbolic.onnx", 2, ["N (of x)", "--dim N=SIZE"]),
    ("symbolic.onnx --dim M=4", 2, ["no dimension 'M'", "Did you mean 'N'?|It has N"]),
    ("symbolic.onnx --dim N", 2, ["--dim 'N' is not NAME=SIZE", "--dim batch=64"]),
    ("symbolic.onnx --dim N=", 2, ["is not NAME=SIZE"]),
    ("symbolic.onnx --dim =4", 2, ["is not NAME=SIZE"]),
    ("symbolic.onnx --dim N=many", 2, ["is not NAME=SIZE"]),
    ("symbolic.onnx --dim N=--4", 2, ["is not NAME=SIZE"]),
    ("symbolic.onnx --dim N=²", 2, ["is not NAME=SIZE"]),
    ("symbolic.onnx --dim N=0", 2, ["'N' cannot have size 0"]),
    ("symbolic.onnx --dim N=-3", 2, ["'N' cannot have size -3"]),
    (
        f"symbolic.onnx --dim N={2**63 - 1}",
        2,
        ["'N' cannot have size 9223372036854775807", "no tensor"],
    ),
    (f"symbolic.onnx --dim N={'9' * 23}", 2, ["'N' cannot have size 999", "no tensor is so large"]),
    (f"symbolic.onnx --dim N={'9' * 5000}", 2, ["is not NAME=SIZE"]),
    ("good.onnx --probe-s nan", 2, ["Invalid value for '--probe-s'"]),
    ("good.onnx --probe-s -1", 2, ["--probe-s"]),
    ("good.onnx --device h20", 2, ["unknown device 'h20'", "Did you mean 'h200'?"]),
    ("good.onnx --device toaster", 2, ["unknown device 'toaster'", "v100"]),
    ("good.onnx --precision fp8", 2, ["unknown low precision 'fp8'", "fp16, bf16"]),
    ("good.onnx --strategy best", 2, ["unknown strategy 'best'", "campo, fine-grained"]),
    ("good.onnx --keep-fp32 (", 2, ["--keep-fp32 '(' is not a regular expression"]),
    ("good.onnx --lists nowhere.toml", 2, ["nowhere.toml does not exist"]),
    ("good.onnx --lists camp", 2, ["unknown op lists 'camp'", "Did you mean 'campo'?"]),
    ("good.onnx --lists lists.toml", 2, ["lists.toml cannot be read", "it is not TOML"]),
    ("good.onnx --lists wrong.toml", 2, ["wrong.toml:3", "Loop cannot be on the list allow"]),
    ("good.onnx --allow Loop", 2, ["Loop cannot be on the list allow"]),
    ("good.onnx --allow Exp --deny Exp", 2, ["Exp is on two lists"]),
    ("good.onnx --allow 3x", 2, ["'3x' does not name an operator"]),
    ("good.onnx -o folder", 2, ["the output folder is a folder"]),
    ("good.onnx -o nowhere/out.onnx", 2, ["nowhere of the output does not exist", "Create it first"]),
    ("good.onnx -o good.onnx/out.onnx", 2, ["good.onnx of the output does not exist"]),
    ("good.onnx -o good.onnx", 2, ["the output good.onnx is the input itself", "--force"]),
    ("good.onnx -o existing.onnx", 2, ["existing.onnx exists", "--force"]),
    ("good.onnx --plan existing.json", 2, ["existing.json exists", "--force"]),
    ("good.onnx --plan out.onnx", 2, ["--plan and --output are the same file"]),
    ("good.onnx --plan ./out.onnx", 2, ["--plan and --output are the same file"]),
    ("good.onnx --plan good.onnx --force", 2, ["--plan and MODEL are the same file"]),
    ("good.onnx --plan nowhere/plan.json", 2, ["does not exist"]),
]


@pytest.mark.parametrize(("words", "code", "expected"), BAD, ids=[words for words, _, _ in BAD])
def test_bad_input_is_one_message_and_nothing_happens(optimize, bad, capsys, words, code, expected):
    before = snapshot(bad)
    output = () if "-o " in words else ("-o", "out.onnx")
    device = () if "--device" in words else ("--device", "v100")
    assert optimize(*words.split(), *output, *device) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert len(printed.err.splitlines()) == 1
    assert "Traceback" not in printed.err
    for part in expected:
        assert any(either in printed.err for either in part.split("|")), printed.err
    assert snapshot(bad) == before


@pytest.mark.parametrize(
    "words",
    [(), ("good.onnx", "-o", "a", "--fast")],
)
def test_misuse_is_code_2(optimize, bad, capsys, words):
    assert optimize(*words) == 2
    assert "`campo-onnx optimize --help` shows what there is." in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write anywhere")
def test_without_permission(optimize, bad, capsys):
    (bad / "folder").chmod(0o500)
    (bad / "good.onnx").chmod(0)
    assert optimize("good.onnx", "-o", "out.onnx") == 2
    assert "not readable" in capsys.readouterr().err
    (bad / "good.onnx").chmod(0o600)
    assert optimize("good.onnx", "-o", "folder/out.onnx") == 2
    assert "no permission to write" in capsys.readouterr().err
    (bad / "folder").chmod(0o700)


def test_missing_external_data(optimize, tmp_path, capsys):
    onnx.save(
        onnx.load(MLP), tmp_path / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0
    )
    (tmp_path / "m.bin").unlink()
    assert optimize("m.onnx", "-o", "out.onnx", "--device", "v100") == 3
    assert "m.bin of initializer" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]
