import re
from pathlib import Path

import pytest

from campo_onnx.errors import UsageError
from campo_onnx.ops.key import OpKey
from campo_onnx.optimize.lists.list_file import load, resolve
from campo_onnx.optimize.lists.oplists import PATTERNS, OpClass, preset
from tests.optimize.lists import DOC, differences, keys


def minimal(**tables: str) -> str:
    """Text of a complete list file."""
    tables = {"allow": "", "infer": "", "clear": "", "deny": ""} | tables
    quoted = {name: ", ".join(f'"{op}"' for op in ops.split()) for name, ops in tables.items()}
    return 'title = "t"\n' + "\n".join(f"[{name}]\nops = [{ops}]" for name, ops in quoted.items())


@pytest.fixture
def write(tmp_path):
    def write_file(text: str | bytes) -> Path:
        path = tmp_path / "mine.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write_file


def test_complete_file(write):
    lists = load(write(minimal(allow="MatMul com.microsoft:ConvGrad", deny="Exp")))
    assert lists.name == "mine.toml"
    assert lists.title == "t"
    assert lists.allow == keys("MatMul com.microsoft:ConvGrad")
    assert lists.deny == keys("Exp")
    assert lists.infer == lists.clear == lists.unlisted == frozenset()
    assert lists.patterns == ()
    assert lists.taint_through_decisions
    assert lists.class_of(OpKey("", "Relu")) is OpClass.UNKNOWN


def test_file_with_byte_order_mark_and_windows_line_ends(write):
    text = minimal(allow="MatMul").replace("\n", "\r\n")
    assert load(write(b"\xef\xbb\xbf" + text.encode())).allow == keys("MatMul")


def test_extending_moves_operators_and_keeps_the_rest(write):
    lists = load(write('extends = "campo"\n[allow]\nops = ["Exp", "my:Op"]\n[unlisted]\nops = ["Tanh"]'))
    assert differences(preset("campo"), lists) == {
        ("deny", "allow"): keys("Exp"),
        ("unknown", "allow"): keys("my:Op"),
        ("infer", "unlisted"): keys("Tanh"),
    }
    assert lists.patterns == PATTERNS
    assert not lists.taint_through_decisions
    assert lists.title == f"{preset('campo').title}, changed by mine.toml"


def test_extending_may_replace_the_rules(write):
    lists = load(write('extends = "campo"\ntitle = "x"\n[rules]\npatterns = ["gelu"]\n'))
    assert lists.patterns == ("gelu",)
    assert not lists.taint_through_decisions
    assert lists.title == "x"
    assert load(write('extends = "tf2"\n[rules]\ntaint_through_decisions = false')).patterns == ()


BAD_FILES = {
    "not TOML": ("title = \n", r"mine.toml cannot be read: it is not TOML: .*line 1"),
    "unknown key": (
        'extends = "campo"\ntitel = "x"',
        r"mine.toml:2: the op lists cannot be read: titel: unknown field, did you mean 'title'",
    ),
    "unknown table": (
        'extends = "campo"\n[denied]\nops = []',
        r"mine.toml:2: .*: denied: unknown field, .*'deny'",
    ),
    "unknown key in a table": (
        'extends = "campo"\n[deny]\nop = []',
        r"mine.toml:3: .*: deny.op: unknown field, did you mean 'ops'",
    ),
    "unknown rule": (
        'extends = "campo"\n[rules]\npattern = []',
        r"mine.toml:3: .*: rules.pattern: unknown field",
    ),
    "unknown key, nothing near": (
        'zzz = 1\nextends = "campo"',
        r"mine.toml:1: .*: zzz: unknown field, known: title, source, extends",
    ),
    "title is a number": (
        'extends = "campo"\ntitle = 3',
        r"mine.toml:2: .*: title: expected `str \| null`, got `int`",
    ),
    "source is a list": (
        'extends = "campo"\nsource = []',
        r"mine.toml:2: .*: source: expected `str`, got `array`",
    ),
    "extends is a list": ('extends = ["campo"]', r"mine.toml:1: .*: extends: expected `str \| null`"),
    "table is a list": (
        'extends = "campo"\ndeny = ["Exp"]',
        r"mine.toml:2: .*: deny: expected `object \| null`",
    ),
    "wrong in the first of two tables": (
        'extends = "campo"\n[infer]\nops = 1 # ops\n[deny]\nops = []',
        r"mine.toml:3: .*: infer.ops: expected `array`",
    ),
    "wrong in a table written in place": (
        'extends = "campo"\ndeny = { op = [] }',
        r"mine.toml:2: .*: deny.op: unknown field",
    ),
    "rules is a list": ('extends = "campo"\nrules = []', r"mine.toml:2: .*: rules: expected `object`"),
    "ops is a string": (
        'extends = "campo"\n[deny]\nops = "Exp"',
        r"mine.toml:3: .*: deny.ops: expected `array`, got `str`",
    ),
    "ops holds a number": (
        'extends = "campo"\n[deny]\nops = ["Exp", 1]',
        r"mine.toml:3: .*: deny.ops\[1\]: expected `str`, got `int`",
    ),
    "ops is missing": (
        'extends = "campo"\n[deny]\nmeaning = "m"',
        r"mine.toml:2: .*: deny: object missing required field `ops`",
    ),
    "meaning is a number": (
        'extends = "campo"\n[deny]\nmeaning = 1\nops = []',
        r"mine.toml:3: .*: deny.meaning: expected `str`",
    ),
    "patterns is a string": (
        'extends = "campo"\n[rules]\npatterns = "gelu"',
        r"mine.toml:3: .*: rules.patterns: expected `array \| null`",
    ),
    "decisions is a string": (
        'extends = "campo"\n[rules]\ntaint_through_decisions = "no"',
        r"mine.toml:3: .*: rules.taint_through_decisions: expected `bool \| null`",
    ),
    "unknown pattern": (
        'extends = "campo"\n[rules]\npatterns = ["gelu",\n"softmx"]',
        r"mine.toml:4: unknown pattern rule 'softmx'. Did you mean 'softmax'",
    ),
    "malformed operator": (
        'extends = "campo"\n[deny]\nops = ["Exp",\n"Conv 2D"]',
        r"mine.toml:4: 'Conv 2D' does not name an operator",
    ),
    "unknown base": (
        'extends = "tf3"',
        r"mine.toml:1: unknown op lists 'tf3' to extend. Did you mean",
    ),
    "overlap": (
        'extends = "campo"\n[allow]\nops = ["Exp"]\n[deny]\nops = [\n"Exp"] # Exp\n# Exp',
        r"mine.toml:6: Exp is on two lists, allow and deny",
    ),
    "overlap in a complete file": (
        minimal(infer="Exp", clear="Exp"),
        r"Exp is on two lists, infer and clear",
    ),
    "releases a loss": (
        'extends = "campo"\n[infer]\nops = ["SoftmaxCrossEntropyLoss"]',
        r"mine.toml:3: SoftmaxCrossEntropyLoss cannot be on the list infer",
    ),
    "releases an update": (
        minimal(clear="com.microsoft:AdamWOptimizer"),
        r"AdamWOptimizer cannot be on the list",
    ),
    "no title": (
        minimal().replace('title = "t"', ""),
        r"mine.toml: 'title' is missing: the file extends no preset",
    ),
    "no deny table": ('title = "t"\n[allow]\nops=[]\n[infer]\nops=[]\n[clear]\nops=[]', r"'deny' is missing"),
    "empty": ("", r"'title' is missing"),
    "not UTF-8": (b'title = "\xff"', r"cannot read the op lists .*mine.toml: byte 9 is not UTF-8"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_say_what_and_where(write, case):
    text, message = BAD_FILES[case]
    path = write(text)
    with pytest.raises(UsageError, match=message) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_unreadable_files(tmp_path):
    with pytest.raises(UsageError, match=r"the op lists .*none.toml does not exist.*presets: campo, "):
        load(tmp_path / "none.toml")
    with pytest.raises(UsageError, match=r"the op lists .* cannot be read"):
        load(tmp_path)


def test_resolve(write, tmp_path, monkeypatch):
    assert resolve("tf2") == preset("tf2")
    path = write(minimal(allow="MatMul"))
    assert resolve(str(path)) == load(path)
    path.rename(tmp_path / "no-suffix")
    assert resolve(str(tmp_path / "no-suffix")).allow == keys("MatMul")
    with pytest.raises(UsageError, match="does not exist"):
        resolve("missing.toml")
    with pytest.raises(UsageError, match=r"unknown op lists 'tf22'. Did you mean 'tf2'"):
        resolve("tf22")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tf2").mkdir()
    assert resolve("tf2") == preset("tf2")  # a folder of that name does not hide the preset


def test_examples_of_the_documentation_load(write):
    complete, extending = re.findall(r"```toml\n(.*?)```", DOC.read_text(encoding="utf-8"), re.DOTALL)
    lists = load(write(complete))
    assert lists.title == "Matrix products only"
    assert lists.allow == keys("MatMul Gemm com.microsoft:FusedMatMul")
    assert lists.patterns == ("bias-gradient",)
    changed = differences(preset("campo"), load(write(extending)))
    assert changed == {
        ("unknown", "allow"): keys("my.domain:FusedAttention"),
        ("infer", "deny"): keys("Tanh Sigmoid"),
    }
