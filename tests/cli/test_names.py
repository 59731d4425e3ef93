"""Names of the user's own modules in what commands print, for a file that torch.onnx.export wrote."""

import json
import re
import warnings

import onnx
import pytest

from campo_onnx.optimize.plan.reason import Reason

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")


class Block(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.fc1, self.fc2 = torch.nn.Linear(size, 4 * size), torch.nn.Linear(4 * size, size)
        self.norm = torch.nn.LayerNorm(size)

    def forward(self, x):
        return self.norm(x + self.fc2(torch.relu(self.fc1(x))))


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([Block(64) for _ in range(12)])
        self.head = torch.nn.Linear(64, 10)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("names") / "network.onnx"
    network, example = Network().eval(), (torch.zeros(512, 64),)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of its own code
        torch.onnx.export(network, example, dynamo=True, verbose=False).save(str(path))
    return path


@pytest.fixture
def plan_of(program, exported, tmp_path):
    def decisions(*words):
        arguments = ("-o", "out.onnx", "--plan", "plan.json", "--device", "v100", "--force", "--strategy")
        assert program("optimize", exported, *arguments, "tf-amp", *words) == 0
        return {d["node"]: d for d in json.loads((tmp_path / "plan.json").read_text())["decisions"]}

    return decisions


def test_modules_of_a_real_export_keep_fp32(plan_of):
    """``layers.1`` is one layer, and not the tenth to the twelfth."""
    before = plan_of()
    assert {d["module"] for d in before.values()} >= {"layers.11.fc1", "layers.11.norm", "head"}
    inside = {name for name, d in before.items() if (d["module"] + ".").startswith("layers.1.")}
    low = {name for name, d in before.items() if d["precision"] == "fp16"}
    assert inside & low
    assert low - inside
    for pattern, part in ((r"layers\.1", "layers.1"), (r"layers\.1\.fc2", "layers.1.fc2")):
        after = plan_of("--keep-fp32", pattern, "--strict")
        kept = {name for name, d in after.items() if d["decided_by"] == Reason.USER.value}
        assert kept
        inside = {name for name, d in before.items() if (d["module"] + ".").startswith(f"{part}.")}
        assert kept <= inside
        assert not {name for name in inside if after[name]["precision"] == "fp16"}


def test_explain_takes_modules(plan_of, program, capsys):
    decisions = plan_of()
    capsys.readouterr()
    assert program("explain", "plan.json", "layers.3", "--top", "0", "--json") == 0
    shown = {d["node"] for d in json.loads(capsys.readouterr().out)["decisions"]}
    assert shown == {name for name, d in decisions.items() if (d["module"] + ".").startswith("layers.3.")}
    product = next(n for n, d in decisions.items() if d["module"] == "layers.3.fc2")
    assert program("explain", "plan.json", product) == 0
    printed = capsys.readouterr().out
    assert re.search(r"module +layers\.3\.fc2 \(Linear\)", printed)
    assert re.search(r"source line +test_names\.py:\d+: return self\.norm\(x \+ self\.fc2", printed)
    assert program("explain", "plan.json", "layer.3") == 2
    assert "'layers.3'" in capsys.readouterr().err


def test_the_report_has_modules_and_source_lines(program, exported, tmp_path):
    pytest.importorskip("jinja2")
    words = ("--device", "v100", "--report", "r.html", "-o", "out.onnx")
    assert program("optimize", exported, *words) == 0
    page = (tmp_path / "r.html").read_text()
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    assert {"layers", "11", "fc1", "head"} <= {*data["modules"]}
    assert data["kinds"][data["modules"].index("head")] == "Linear"
    assert any(line.startswith("test_names.py:") for line in data["lines"])
    command = f"campo-onnx optimize {exported} {' '.join(words)}"
    assert f'data-copy="{command}"' in page


def test_compare_takes_modules_and_shows_them(program, exported, tmp_path, capsys):
    pytest.importorskip("jinja2")
    capsys.readouterr()
    low = []
    for words in ((), ("--keep-fp32", r"layers\.\d+")):
        assert program("compare", exported, "--device", "v100", "--json", "--strict", *words) == 0
        rows = json.loads(capsys.readouterr().out)["strategies"]
        low.append({row["strategy"]: row["low_nodes"] for row in rows})
    assert 0 < low[1]["tf-amp"] <= 3 < low[0]["tf-amp"]  # the head is left
    assert program("compare", exported, "--device", "v100", "--report", "c.html") == 0
    data = json.loads((tmp_path / "c.html").read_text().partition('id="data">')[2].partition("</script>")[0])
    assert {"layers", "11", "fc1", "head"} <= {*data["modules"]}
    assert data["kinds"][data["modules"].index("head")] == "Linear"


def test_the_written_file_keeps_its_names(program, exported):
    assert program("optimize", exported, "-o", "out.onnx", "--device", "v100", "--strategy", "tf-amp") == 0
    scopes = [
        {p.key: p.value for p in node.metadata_props}.get("pkg.torch.onnx.name_scopes")
        for node in onnx.load("out.onnx").graph.node
        if node.op_type != "Cast"
    ]
    assert all(scopes)
