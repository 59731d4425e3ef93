"""Tables: what is left out where the terminal is narrow, and what CSV and Markdown hold."""

import csv
import io
import json
import os
import re
import subprocess
import sys
from operator import itemgetter
from pathlib import Path

import pytest
from rich.console import Console

from cli.render.table import Cell, Column, Table, number

MLP = Path(__file__).parent.parent / "data" / "mlp.onnx"
NAME = "a/very/long/name/of/a/node/that/ends/in/its/number_12345"


@pytest.fixture
def table():
    row = (NAME, Cell("25.63 ms", 25630.5), 1234567, 7654321, 3)
    return Table(
        [
            Column("node", "node", itemgetter(0), may_break=True),
            number("time", "time_us", itemgetter(1)),
            number("less", "less", itemgetter(2), "{:,}".format, rank=1),
            number("least", "least", itemgetter(3), "{:,}".format, rank=2),
            Column("hidden", "hidden", itemgetter(4), csv_only=True),
        ]
    ).fill([row])


def drawn(table, width):
    shown, left_out = table.for_width(width)
    console = Console(width=width, file=io.StringIO())
    console.print(shown)
    return console.file.getvalue(), left_out


@pytest.mark.parametrize(
    ("width", "left_out"), [(120, ()), (60, ()), (50, ("least",)), (36, ("less", "least"))]
)
def test_columns_go_whole_and_the_least_important_first(table, width, left_out):
    text, gone = drawn(table, width)
    assert gone == left_out
    assert all(len(line) <= width for line in text.splitlines())
    assert "…" not in text
    assert "25.63 ms" in text
    shown = {"less": "1,234,567", "least": "7,654,321"}
    assert [title for title, digits in shown.items() if digits not in text] == [*left_out]
    name = "".join(re.findall(r"^  (\S+)", text, re.M)[1:])
    assert NAME in name.replace("─", "")  # broken over lines, and whole


def test_csv_has_values_and_markdown_what_is_shown(table):
    (row,) = csv.DictReader(io.StringIO(table.to_csv()))
    assert row == {
        "node": NAME, "time_us": "25630.5", "less": "1234567", "least": "7654321", "hidden": "3"
    }  # fmt: skip
    head, rule, line = table.to_markdown().splitlines()
    assert head == "| node | time | less | least |"
    assert rule == "|---|--:|--:|--:|"
    assert line == f"| {NAME} | 25.63 ms | 1,234,567 | 7,654,321 |"


def test_names_of_strangers_are_no_formulas_and_no_markup():
    table = Table([Column("node", "node")]).fill(["=HYPERLINK(1)|`x`<b>\n::error::"])
    assert table.to_csv().splitlines()[1].startswith("\"'=" if "," in table.to_csv() else "'=")
    assert r"\|\`x\`&lt;b>" in table.to_markdown()


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals there")
def test_a_terminal_is_filled():
    import fcntl
    import struct
    import termios

    width, words = 80, [sys.executable, "-m", "campo_onnx", "compare", MLP, "--device", "v100"]
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "TERM")}
    env |= {"NO_COLOR": "1", "TERM": "xterm"}
    process = subprocess.Popen(words, stdout=slave, stderr=subprocess.DEVNULL, env=env)
    os.close(slave)
    text = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        text += piece
    assert process.wait() == 0
    os.close(master)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text.decode()).splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in text.decode()
    assert "\x1b[3" not in text.decode()  # no colours
    assert any(f"Left out at {width} columns" in line for line in lines)


def test_a_pipe_cuts_nothing(program, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert program("compare", MLP, "--device", "v100") == 0
    piped = capsys.readouterr().out
    assert "Left out" not in piped
    assert "tensors at most" in piped
    assert not [line for line in piped.splitlines() if line != line.rstrip()]


def test_every_table_as_csv(program, capsys):
    assert program("optimize", MLP, "-o", "m.onnx", "--device", "v100", "--plan", "plan.json") == 0
    capsys.readouterr()
    for words, first in {
        ("compare", MLP, "--device", "v100"): "strategy",
        ("devices",): "name",
        ("explain", "plan.json", "--top", "0"): "node",
        ("check", "m.onnx", "--against", MLP, "--device", "v100", "--min-speedup", "0"): "graph",
    }.items():
        assert program(*words, "--format", "csv") == 0
        rows = [*csv.reader(io.StringIO(capsys.readouterr().out))]
        assert rows[0][0] == first
        assert len({len(row) for row in rows}) == 1
        assert len(rows) > 5
        assert program(*words, "--format", "markdown") == 0
        assert capsys.readouterr().out.startswith("| ")
    nodes = len(json.loads(Path("plan.json").read_text())["decisions"])
    assert program("explain", "plan.json", "--top", "0", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["decisions"]) == nodes
