from campo_onnx.ir.view import Use
from campo_onnx.optimize.lists.oplists import OpClass
from campo_onnx.optimize.lists.patterns.max_pool_gradient import max_pool_gradient

POOL = """(float[1, 2, 4, 4] x, float[8] g, float[32] zeros, int64[8] tokens) => (float[32] y)
<int64[1] flat = {{-1}}> {{
  [pool] p, at = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)
  [view] indices = Reshape(at, flat)
  [values] floats = Reshape(p, flat)
  [scatter] d = ScatterElements<reduction = "add">(zeros, {indices}, g)
  [after] y = Tanh(d)
}}"""


def test_a_scatter_at_pool_indices_spreads_nothing(read):
    findings = max_pool_gradient(read(POOL.format(indices="indices")).view, frozenset())
    assert {name: op_class for name, (op_class, _) in findings.classes.items()} == {"scatter": OpClass.DENY}
    assert findings.contained == {Use("after", 0)}


def test_a_scatter_at_tokens_is_another_matter(read):
    findings = max_pool_gradient(read(POOL.format(indices="tokens")).view, frozenset())
    assert findings.classes == {}
    assert findings.contained == frozenset()


def test_resblocks_gradient_flows_past_its_pool(exported):
    view = exported("resblocks")
    findings = max_pool_gradient(view, frozenset())
    (scatter,) = findings.classes
    assert view.node[scatter].op.op_type == "ScatterElements"
