"""The policy file: what it says, and one message for whatever is wrong with it."""

import pytest

from campo_onnx.checking.policy import Policy, load_policy
from campo_onnx.errors import UsageError

GRAPH = '[[graph]]\nmixed = "m.onnx"\nagainst = "f.onnx"\n'


@pytest.fixture
def load(tmp_path):
    def read(text):
        path = tmp_path / "campo.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_policy(path)

    return read


def test_defaults_hold_for_every_graph_and_give_way_to_its_own(load, tmp_path):
    first, second = load(
        '[defaults]\nmax_drift = 0.5\ndevice = "t4"\nkeep_fp32 = ["Relu"]\nlists = "tf2"\nstrict = true\n'
        + GRAPH
        + 'max_drift = 0\nmax_casts = 3\nbaseline = "sub/p.json"\ninputs = ["b.npz"]\ndims = { N = 4 }\n'
        + GRAPH.replace("m.onnx", "n.onnx")
        + 'name = "second"\nmin_speedup = 1.5\ndevice = "v100"\nstrict = false\n'
    )
    assert (first.name, first.mixed, first.against) == ("m.onnx", tmp_path / "m.onnx", tmp_path / "f.onnx")
    assert (first.policy.max_drift, first.policy.min_speedup, first.policy.max_casts) == (0.0, 1.0, 3)
    assert (first.policy.baseline, first.policy.inputs) == (tmp_path / "sub/p.json", (tmp_path / "b.npz",))
    assert (first.policy.dims, first.policy.keep_fp32) == ({"N": 4}, ("Relu",))
    assert (first.policy.target.name, first.policy.lists.name, first.policy.strict) == ("t4", "tf2", True)
    assert (second.name, second.policy.max_drift, second.policy.min_speedup) == ("second", 0.5, 1.5)
    assert (second.policy.target.name, second.policy.strict, second.policy.baseline) == ("v100", False, None)


def test_a_graph_needs_no_more_than_two_files(load):
    (pair,) = load(GRAPH)
    assert pair.policy == Policy()


def test_lists_of_the_repository_are_found_beside_the_policy(load, tmp_path):
    (tmp_path / "own.toml").write_text('extends = "campo"\n[deny]\nops = ["Relu"]\n')
    (pair,) = load(GRAPH + 'lists = "own.toml"')
    assert "Relu" in {op.label for op in pair.policy.lists.deny}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GRAPH + "max_drfit = 1", "graph[0].max_drfit: unknown field, did you mean 'max_drift'?"),
        ("[default]\n" + GRAPH, "default: unknown field, did you mean 'defaults'?"),
        ('[defaults]\nbaseline = "p"\n' + GRAPH, "defaults.baseline: unknown field, known: max_drift,"),
        (GRAPH + GRAPH + "zzz = 1", "graph[1].zzz: unknown field, known: mixed, against, max_drift,"),
        ('[[graph]]\nmixed = "m"', "graph[0]: object missing required field `against`"),
        ('[[graph]]\nagainst = "m"', "graph[0]: object missing required field `mixed`"),
        ("", "names no graph. Add a [[graph]] table"),
        ("graph = [1]", "graph[0]: expected `object`, got `int`"),
        ("[graph]\nmixed = 1", "graph: expected `array`, got `object`"),
        (GRAPH + GRAPH, "has 2 graphs named 'm.onnx'"),
        ("defaults = 3\n" + GRAPH, "defaults: expected `object`, got `int`"),
        (GRAPH + 'max_drift = "1"', "graph[0].max_drift: expected `float | null`, got `str`"),
        (GRAPH + "max_drift = nan", "graph[0]: max_drift is nan. Give a number that is not negative"),
        (GRAPH + f"max_casts = {10**400}", "max_casts: the number is beyond 64 bits"),
        (GRAPH + f"dims = {{ batch = {10**23} }}", "dims.batch: the number is beyond 64 bits"),
        (GRAPH + "min_speedup = inf", "graph[0]: min_speedup is inf. Give a number"),
        ("[defaults]\nmin_speedup = -1\n" + GRAPH, "graph[0]: min_speedup is -1"),
        (GRAPH + "max_drift = true", "graph[0].max_drift: expected `float | null`, got `bool`"),
        (GRAPH + "max_casts = -1", "graph[0]: max_casts is -1. Give a number"),
        (GRAPH + "max_casts = 1.5", "graph[0].max_casts: expected `int | null`, got `float`"),
        (GRAPH + "strict = 1", "graph[0].strict: expected `bool | null`, got `int`"),
        (GRAPH + 'inputs = "b.npz"', "graph[0].inputs: expected `array`, got `str`"),
        (GRAPH + "keep_fp32 = [1]", "graph[0].keep_fp32[0]: expected `str`, got `int`"),
        (GRAPH + 'dims = { N = "4" }', "graph[0].dims[...]: expected `int`, got `str`"),
        (GRAPH + 'device = "v10"', "graph[0]: unknown device 'v10'"),
        (GRAPH + 'lists = "camp"', "graph[0]: unknown op lists 'camp'"),
        ("[[graph]", "campo.toml cannot be read: it is not TOML"),
        (b"\xff\xfe", "campo.toml cannot be read: it is not TOML"),
    ],
)
def test_a_bad_policy_is_one_message(load, text, message):
    with pytest.raises(UsageError) as refusal:
        load(text)
    assert message in str(refusal.value)


def test_a_missing_policy(tmp_path):
    with pytest.raises(UsageError, match=r"campo\.toml does not exist"):
        load_policy(tmp_path / "campo.toml")
    with pytest.raises(UsageError, match="cannot be read"):
        load_policy(tmp_path)


@pytest.mark.parametrize(
    "limits", [{"max_drift": -1.0}, {"min_speedup": float("nan")}, {"max_casts": -1}], ids=str
)
def test_limits_without_sense_are_refused(limits):
    with pytest.raises(UsageError, match="Give a number that is not negative"):
        Policy(**limits)
