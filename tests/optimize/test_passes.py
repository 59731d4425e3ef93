from dataclasses import replace

import pytest

from campo_onnx.ir.view import Use
from campo_onnx.optimize.lists.classify import Classification, NodeClass
from campo_onnx.optimize.lists.oplists import OpClass
from campo_onnx.optimize.passes import between, flood, taint

LETTERS = {
    "d": OpClass.DENY,
    "i": OpClass.INFER,
    "c": OpClass.CLEAR,
    "a": OpClass.ALLOW,
    "u": OpClass.UNLISTED,
}
OPERATORS = {"d": "Exp", "i": "Tanh", "c": "Neg", "a": "Tanh", "u": "Sin"}


def classes(view, *, contained=(), decisions=False):
    """A node's class is the first letter of its name."""
    return Classification(
        classes={node.name: NodeClass(op_class=LETTERS[node.name[0]]) for node in view.nodes},
        contained=frozenset(contained),
        taint_through_decisions=decisions,
    )


@pytest.fixture
def chain(read):
    """A view of nodes in a row."""

    def make(*names):
        rows = [f"[{name}] t{i + 1} = {OPERATORS[name[0]]}(t{i})" for i, name in enumerate(names)]
        text = f"(float[4] t0) => (float[4] t{len(names)}) {{ {chr(10).join(rows)} }}"
        return read(text).view

    return make


@pytest.mark.parametrize(
    ("names", "tainted"),
    [
        ("d1 i1 c1 i2 c2 a1 i3", "i1 c1 i2"),  # TensorFlow's own example: the clear tail c2 is spared
        ("d1 c1 c2 a1", ""),
        ("d1 c1 c2 i1", "c1 c2 i1"),
        ("d1 c1 c2 d2", "c1 c2"),
        ("d1 c1 d2 c2", "c1"),
        ("d1 i1", "i1"),
        ("i1 c1 d1", ""),  # upstream is none of its business
        ("d1 a1 i1", ""),
        ("d1 u1 i1", ""),  # an unlisted node neither carries nor starts it
        ("u1 i1 c1 i2", ""),
        ("i1 c1 a1", ""),
    ],
)
def test_taint_along_a_chain(chain, names, tainted):
    view = chain(*names.split())
    assert taint(view, classes(view)) == set(tainted.split())


def test_one_of_two_branches_behind_a_clear_node_leads_on(read):
    view = read("""(float[4] x) => (float[4] y, float[4] z) {
        [d1] t = Exp(x)
        [c1] s = Neg(t)
        [c2] y = Neg(s)
        [i1] z = Tanh(s)
    }""").view
    assert taint(view, classes(view)) == {"c1", "i1"}


DECISION = """(float[4] x) => (float[4] y) {
    [d1] t = Exp(x)
    [c1] mask = Greater(t, x)
    [i1] y = Where(mask, x, x)
}"""


@pytest.mark.parametrize(("decisions", "tainted"), [(True, {"c1", "i1"}), (False, set())])
def test_decisions_carry_taint_only_where_the_lists_say_so(read, decisions, tainted):
    view = read(DECISION).view
    assert taint(view, classes(view, decisions=decisions)) == tainted


def test_a_contained_reading_stops_taint_and_the_other_reading_does_not(read):
    view = read("""(float[4] x) => (float[4] y, float[4] z) {
        [d1] t = Exp(x)
        [i1] y = Mul(x, t)
        [i2] z = Mul(t, x)
    }""").view
    assert taint(view, classes(view, contained=[Use("i1", 1)])) == {"i2"}
    assert taint(view, classes(view, contained=[Use("i1", 0)])) == {"i1", "i2"}


def test_a_contained_reading_is_no_way_on_for_clear_nodes(read):
    view = read("""(float[4] x) => (float[4] y) {
        [d1] t = Exp(x)
        [c1] s = Neg(t)
        [i1] y = Mul(x, s)
    }""").view
    assert taint(view, classes(view)) == {"c1", "i1"}
    assert taint(view, classes(view, contained=[Use("i1", 1)])) == set()


def test_taint_does_not_reach_into_the_next_outputs_of_a_node_it_never_met(read):
    view = read("""(float[4] x) => (float[4] y, float[4] z) {
        [i1] t = Tanh(x)
        [d1] y = Exp(t)
        [i2] z = Tanh(t)
    }""").view
    assert taint(view, classes(view)) == set()


def anything(name):
    return True


@pytest.mark.parametrize(
    ("names", "low", "middle"),
    [
        ("a1 i1 c1 a2", "a1 a2", "i1 c1"),
        ("i1 a1 c1", "a1", ""),  # ends hang out on one side only
        ("a1 i1 c1 a2 i2 a3 i3", "a1 a2 a3", "i1 c1 i2"),
        ("a1 i1 a2 i2", "a1", ""),  # a2 is FP32 and no end of a path
    ],
)
def test_between_along_a_chain(chain, names, low, middle):
    view = chain(*names.split())
    assert between(view, frozenset(low.split()), lambda name: name[0] in "ic") == set(middle.split())


def test_between_needs_one_path_through_nodes_that_may_pass(chain):
    view = chain("a1", "i1", "d1", "i2", "a2")
    assert between(view, frozenset({"a1", "a2"}), lambda name: name[0] in "ic") == set()


def test_between_joins_two_branches_only_where_both_ends_are_low(read):
    view = read("""(float[4] x) => (float[4] y, float[4] z) {
        [a1] t = Tanh(x)
        [i1] s = Add(t, x)
        [i2] r = Tanh(x)
        [i3] q = Add(s, r)
        [i4] z = Tanh(s)
        [a2] y = Tanh(q)
    }""").view
    # i2 lies before a low node only, i4 behind one only.
    assert between(view, frozenset({"a1", "a2"}), lambda name: name[0] == "i") == {"i1", "i3"}


def test_between_and_flood_do_not_pass_through_masks_and_indices(read):
    view = read("""(float[4] x) => (float[4] y) {
        [a1] t = Tanh(x)
        [c1] mask = Greater(t, x)
        [c2] s = Where(mask, x, x)
        [a2] y = Tanh(s)
    }""").view
    low = frozenset({"a1", "a2"})
    assert between(view, low, anything) == set()
    assert flood(view, frozenset({"a1"}), anything) == {"c1"}


def test_flood_goes_up_and_down_and_stops_at_other_nodes(chain):
    view = chain("c1", "i1", "c2", "c3", "a1", "c4", "c5", "i2", "c6")
    assert flood(view, frozenset({"a1"}), lambda name: name[0] == "c") == {"c2", "c3", "c4", "c5"}


def test_flood_turns_back_up_another_input(read):
    view = read("""(float[4] x) => (float[8] y) {
        [a1] t = Tanh(x)
        [c1] s = Neg(x)
        [c2] y = Concat<axis=0>(t, s)
    }""").view
    assert flood(view, frozenset({"a1"}), lambda name: name[0] == "c") == {"c1", "c2"}


def test_nothing_comes_of_nothing(chain):
    view = chain("c1", "i1")
    assert between(view, frozenset(), anything) == flood(view, frozenset(), anything) == frozenset()


def test_a_released_node_is_not_tainted_but_what_lies_behind_it_is(chain):
    view = chain("d1", "i1", "i2")
    classification = replace(classes(view), released=frozenset({"i1"}))
    assert taint(view, classification) == {"i2"}
