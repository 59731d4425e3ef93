import csv
import re
import tomllib
from pathlib import Path

import onnx
import pytest

from campo_onnx.errors import UsageError
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.registry import spec
from campo_onnx.optimize.lists.oplists import (
    PATTERNS,
    SAFETY_DENY,
    TABLES,
    OpClass,
    OpLists,
    preset,
    preset_names,
    with_overrides,
)
from tests.optimize.lists import DOC, differences, keys, placed

PRESETS = preset_names()
OPS_DIR = Path(__file__).parents[2] / "campo_onnx" / "ops"
ABOUT = tomllib.loads(OPS_DIR.joinpath("presets.toml").read_text(encoding="utf-8"))

# Every operator of eight exported training graphs (MLP, CNNs, ResNet-50, BERT; PyTorch's exporter) and of
# three gradient graphs of ONNX Runtime (ORTModule and its offline artifacts).
IN_TRAINING_GRAPHS = """
    Add BatchNormalization Cast Constant ConstantOfShape Conv ConvTranspose Div Dropout Equal Erf Exp Expand
    Flatten Gather GatherElements Gelu Gemm Identity LayerNormalization Less LessOrEqual LogSoftmax MatMul
    MaxPool MaxPoolGrad Mul Neg Not RandomUniform Range Reciprocal ReduceMean ReduceMin ReduceSum Relu Reshape
    ScatterElements Shape Slice Softmax SoftmaxCrossEntropyLoss Sqrt Squeeze Sub Sum Transpose Unsqueeze Where
    com.microsoft:BatchNormInternal com.microsoft:BatchNormalizationGrad com.microsoft:BroadcastGradientArgs
    com.microsoft:ConcatTraining com.microsoft:ConvGrad com.microsoft:DropoutGrad com.microsoft:FusedMatMul
    com.microsoft:Gelu com.microsoft:GeluGrad com.microsoft:InPlaceAccumulatorV2
    com.microsoft:LayerNormalizationGrad com.microsoft:ReluGrad com.microsoft:SoftmaxCrossEntropyLossGrad
    com.microsoft:SoftmaxCrossEntropyLossInternal com.microsoft:SoftmaxCrossEntropyLossInternalGrad
    com.microsoft:SoftmaxGrad_13 com.microsoft:YieldOp org.pytorch.aten:ATen
"""

NEWEST_OPSET_PLACED = 26


# Presets


def test_preset_names():
    assert {"campo", "tf115", "tf2"} <= set(preset_names())
    assert list(preset_names()) == sorted(preset_names())


@pytest.mark.parametrize("name", PRESETS)
def test_every_operator_of_real_training_graphs_is_placed_once(name):
    lists = preset(name)
    for op in keys(IN_TRAINING_GRAPHS):
        assert sum(op in ops for ops in lists.tables.values()) == 1, op.label
        assert lists.class_of(op) is not OpClass.UNKNOWN


@pytest.mark.parametrize("name", PRESETS)
def test_the_whole_standard_operator_set_is_placed(name):
    schemas = [s for s in onnx.defs.get_all_schemas_with_history() if s.domain == ""]
    first = {s.name: min(t.since_version for t in schemas if t.name == s.name) for s in schemas}
    standard = {op for op, version in first.items() if version <= NEWEST_OPSET_PLACED}
    assert {op for op in standard if preset(name).class_of(OpKey("", op)) is OpClass.UNKNOWN} == set()


@pytest.mark.parametrize("name", PRESETS)
def test_presets_place_the_same_operators(name):
    assert placed(preset(name)) == placed(preset("campo"))


def test_the_table_of_presets_is_well_formed():
    table = OPS_DIR.joinpath("presets.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(table.splitlines()))
    labels = [row["op"] for row in rows]
    assert len(labels) == len(set(labels))
    assert list(rows[0]) == ["op", *ABOUT, "why", "tensorflow"]
    for row in rows:
        assert spec(OpKey.parse(row["op"])).is_known, row["op"]
        assert {row[name] for name in PRESETS} <= {op_class.value for op_class in TABLES}, row["op"]
        assert row["why"], row["op"]
        assert bool(row["tensorflow"]) is (row["tf2"] != "unlisted"), row["op"]


@pytest.mark.parametrize("name", PRESETS)
def test_presets_say_where_they_come_from_and_what_their_lists_mean(name):
    assert ABOUT[name]["title"].startswith(f"{name}: ")
    assert ABOUT[name]["source"].strip()
    assert list(ABOUT[name]["meaning"]) == [op_class.value for op_class in TABLES]


@pytest.mark.parametrize("name", PRESETS)
def test_no_preset_lets_a_safety_operator_go_low(name):
    lists = preset(name)
    assert {lists.class_of(op) for op in SAFETY_DENY} <= {OpClass.DENY, OpClass.UNLISTED}


def test_campo_denies_all_safety_operators_but_control_flow():
    assert SAFETY_DENY - preset("campo").deny == keys("If Loop Scan SequenceMap")


def test_rules_of_presets():
    assert preset("campo").patterns == PATTERNS
    assert preset("tf115").patterns == preset("tf2").patterns == ()
    assert not preset("campo").taint_through_decisions
    assert preset("tf115").taint_through_decisions
    assert preset("tf2").taint_through_decisions


def test_tf115_and_tf2_differ_as_documented():
    assert differences(preset("tf115"), preset("tf2")) == {
        ("deny", "infer"): keys(
            "Log Softmax LogSoftmax com.microsoft:SoftmaxGrad com.microsoft:SoftmaxGrad_13 "
            "com.microsoft:LogSoftmaxGrad com.microsoft:LogSoftmaxGrad_13"
        ),
        ("unlisted", "allow"): keys(
            "Einsum Attention "
            "com.microsoft:FusedConv com.microsoft:Attention com.microsoft:MultiHeadAttention"
        ),
        ("unlisted", "infer"): keys("Selu Softsign"),
    }


def test_campo_and_tf2_differ_as_documented():
    pairs = differences(preset("tf2"), preset("campo"))
    unlisted_in_tf2 = {pair: pairs.pop(pair) for pair in list(pairs) if pair[0] == "unlisted"}
    assert pairs == {
        ("infer", "deny"): keys("Log ReduceProd"),
        ("deny", "infer"): keys("Mean"),
        ("clear", "deny"): keys("ScatterND com.microsoft:GatherGrad"),
        ("clear", "unlisted"): keys("SequenceAt SequenceInsert ConcatFromSequence SplitToSequence"),
    }
    assert set(unlisted_in_tf2) == {("unlisted", name) for name in ("allow", "infer", "clear", "deny")}


def test_tables_of_the_documentation_agree_with_the_presets():
    rows = re.findall(r"^\| (`[^|]+) \| (\w+) \| (\w+) \| ", DOC.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == 8
    sides = [("tf115", "tf2")] * 3 + [("tf2", "campo")] * 5
    for (ops, *classes), names in zip(rows, sides, strict=True):
        for label in re.findall(r"`(\w+)`", ops):
            domains = [d for d in ("", "com.microsoft") if OpKey(d, label) in placed(preset("campo"))]
            assert domains, label
            for domain in domains:
                assert [preset(n).class_of(OpKey(domain, label)).value for n in names] == classes


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("Conv", OpClass.ALLOW),
        ("Softmax", OpClass.INFER),
        ("LayerNormalization", OpClass.INFER),
        ("com.microsoft:GeluGrad", OpClass.INFER),
        ("Cast", OpClass.CLEAR),
        ("com.microsoft:DropoutGrad", OpClass.CLEAR),
        ("Exp", OpClass.DENY),
        ("ReduceSum", OpClass.DENY),
        ("ScatterElements", OpClass.DENY),
        ("RandomUniform", OpClass.DENY),
        ("com.microsoft:YieldOp", OpClass.UNLISTED),
        ("org.pytorch.aten:ATen", OpClass.UNLISTED),
        ("If", OpClass.UNLISTED),
        ("com.microsoft:Conv", OpClass.UNKNOWN),  # the domain counts
        ("NoSuchOp", OpClass.UNKNOWN),
    ],
)
def test_class_of_in_campo(label, expected):
    assert preset("campo").class_of(OpKey.parse(label)) is expected


def test_unknown_preset_suggests_the_nearest():
    with pytest.raises(UsageError, match=r"unknown op lists 'camp'. Did you mean 'campo'"):
        preset("camp")


# OpLists


def lists_of(**tables: str) -> OpLists:
    named = {"allow": "", "infer": "", "clear": "", "deny": ""} | tables
    return OpLists(name="n", title="t", **{name: frozenset(keys(ops)) for name, ops in named.items()})


def test_overlap_names_operator_and_lists():
    with pytest.raises(UsageError, match="op lists n: Exp is on two lists, infer and unlisted"):
        lists_of(infer="Exp", unlisted="Exp Log")


@pytest.mark.parametrize("table", ["allow", "infer", "clear"])
@pytest.mark.parametrize("op", ["SoftmaxCrossEntropyLoss", "com.microsoft:InPlaceAccumulatorV2", "Loop"])
def test_lists_cannot_release_safety_operators(table, op):
    with pytest.raises(UsageError, match=f"{op} cannot be on the list {table}"):
        lists_of(**{table: op})


def test_safety_operators_are_denied_when_no_list_names_them():
    lists = lists_of(allow="Conv")
    assert {lists.class_of(op) for op in SAFETY_DENY} == {OpClass.DENY}
    assert lists.class_of(OpKey("", "Exp")) is OpClass.UNKNOWN


def test_unknown_pattern_is_refused():
    empty = frozenset()
    with pytest.raises(UsageError, match=r"unknown pattern rule 'softmaxx'. Did you mean 'softmax'"):
        OpLists(
            name="n", title="t", allow=empty, infer=empty, clear=empty, deny=empty, patterns=("softmaxx",)
        )


# Overrides


def test_overrides_move_and_add():
    before = preset("campo")
    after = with_overrides(before, deny=["Tanh"], allow=["my.domain:Fused"], clear=["Exp"], infer=["Sin"])
    assert differences(before, after) == {
        ("infer", "deny"): keys("Tanh"),
        ("unknown", "allow"): keys("my.domain:Fused"),
        ("deny", "clear"): keys("Exp"),
        ("unlisted", "infer"): keys("Sin"),
    }
    assert (after.patterns, after.taint_through_decisions) == (
        before.patterns,
        before.taint_through_decisions,
    )
    assert after.name == "campo with overrides"
    assert preset("campo") == before


def test_no_overrides_change_nothing():
    lists = preset("tf2")
    assert with_overrides(lists) is lists


def test_the_standard_domain_may_be_spelled_out():
    assert with_overrides(preset("campo"), allow=["ai.onnx:Exp"]).class_of(OpKey("", "Exp")) is OpClass.ALLOW


def test_an_operator_cannot_be_overridden_twice():
    with pytest.raises(UsageError, match="Exp is on two lists, allow and deny"):
        with_overrides(preset("campo"), allow=["Exp"], deny=["ai.onnx:Exp"])


def test_overrides_cannot_release_safety_operators():
    with pytest.raises(
        UsageError, match="SGDOptimizerV2 cannot be on the list allow: losses, weight updates"
    ):
        with_overrides(preset("campo"), allow=["com.microsoft:SGDOptimizerV2"])


def test_safety_operators_may_be_denied_again():
    after = with_overrides(preset("campo"), deny=["Loop", "SoftmaxCrossEntropyLoss"])
    assert differences(preset("campo"), after) == {("unlisted", "deny"): keys("Loop")}


@pytest.mark.parametrize("label", ["", "Exp ", "com.microsoft:", ":Exp", "a::Exp", "Conv.*", "3D", "Größe"])
def test_malformed_operator_names_are_refused(label):
    with pytest.raises(UsageError, match="does not name an operator"):
        with_overrides(preset("campo"), deny=[label])


# Documentation


def test_documentation_describes_every_pattern_and_preset():
    text = DOC.read_text(encoding="utf-8")
    assert tuple(re.findall(r"^\*\*([\w-]+)\.\*\*", text, re.MULTILINE)) == PATTERNS
    assert set(re.findall(r"\*\*`(\w+)`\*\*", text)) == set(PRESETS)
