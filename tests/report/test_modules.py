"""Modules that are read off names."""

import pytest

from campo_onnx.ir.origin import scope_of
from campo_onnx.report.decisions import module_tree


@pytest.mark.parametrize(
    ("name", "scope"),
    [
        ("layers.3.query/grad/MatMul", ("layers", "3", "query", "grad")),
        ("/encoder/layer.0/Add", ("encoder", "layer", "0")),
        ("/layer1/layer1.0/downsample/downsample.0/Conv", ("layer1", "0", "downsample", "0")),
        ("/layer1/layer10.0/Conv", ("layer1", "layer10", "0")),
        ("node_mm_7", ()),
        ("a//b/Mul", ("a", "b")),
        ("", ()),
        ("/", ()),
        ("...", ()),
    ],
)
def test_scope(name, scope) -> None:
    assert scope_of(name) == scope


def test_every_node_is_in_its_module_and_parents_come_first() -> None:
    names = ["a.b/Mul", "c", "a/Add", "a.b/grad/Mul", "__proto__/x"]
    tree = module_tree([scope_of(name) for name in names])

    def path(module: int) -> list[str]:
        here = tree.modules[module]
        return [] if here.parent < 0 else [*path(here.parent), here.name]

    assert [path(module) for module in tree.module_of] == [list(scope_of(name)) for name in names]
    assert all(module.parent < number for number, module in enumerate(tree.modules))
    assert [module.parent for module in tree.modules].count(-1) == 1


@pytest.mark.parametrize("count", [0, 1, 200, 201, 10_000])
def test_names_without_modules_are_divided_into_sections(count) -> None:
    tree = module_tree([()] * count)
    assert len(tree.module_of) == count
    sizes = [tree.module_of.count(module) for module in range(len(tree.modules))]
    assert max(sizes) <= 200
    assert len(tree.modules) <= 101
    if count > 200:
        assert tree.modules[1].name.startswith("1 to ")
        assert tree.modules[-1].name.endswith(f" to {count}")
        assert list(tree.module_of) == sorted(tree.module_of)
