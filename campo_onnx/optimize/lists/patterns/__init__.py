"""Pattern rules: what a decomposed operator's pieces are, where framework lists speak of the whole.

Each rule is a plain function ``(GraphView, frozenset of nodes kept FP32 for safety) -> Findings``.
A rule only looks; :mod:`campo_onnx.optimize.lists.classify` applies what it found.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from campo_onnx.ir.view import GraphView
from campo_onnx.optimize.lists.patterns.bias_gradient import bias_gradient
from campo_onnx.optimize.lists.patterns.findings import Findings
from campo_onnx.optimize.lists.patterns.gelu import gelu
from campo_onnx.optimize.lists.patterns.max_pool_gradient import max_pool_gradient
from campo_onnx.optimize.lists.patterns.normalization import normalization
from campo_onnx.optimize.lists.patterns.random import random
from campo_onnx.optimize.lists.patterns.softmax import softmax

PatternRule = Callable[[GraphView, frozenset[str]], Findings]

PATTERN_RULES: Mapping[str, PatternRule] = MappingProxyType(
    {
        "bias-gradient": bias_gradient,
        "normalization": normalization,
        "softmax": softmax,
        "gelu": gelu,
        "max-pool-gradient": max_pool_gradient,
        "random": random,
    }
)
"""The rules by the name that list files call them."""
