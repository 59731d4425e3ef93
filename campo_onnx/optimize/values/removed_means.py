"""Means that are taken off: over the batch, or weighted by shares that add up to one."""

from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush

from campo_onnx.ir.view import OpNode
from campo_onnx.ir.walk import Walk
from campo_onnx.ops.key import op_keys
from campo_onnx.optimize.values.expansions import Addend, Expansions
from campo_onnx.optimize.values.graph_values import GraphValues
from campo_onnx.optimize.values.sum_ops import CONTRACTIONS, MOVES, SCALES
from campo_onnx.optimize.values.walk import Labels, carried

_PLACES = op_keys("OneHot ScatterElements ScatterND")
_GRADIENTS = op_keys("com.microsoft:SoftmaxGrad com.microsoft:SoftmaxGrad_13")


def means_removed(values: GraphValues) -> Mapping[str, str]:
    """Find shares, sums and differences of ``y * g - y * sum(y * g)``, ``g - sum(y * g)``, ``g - mean(g)``.

    And of ``g - y * sum(g)``, the gradient of a logarithm of shares: once shares are those to be learned,
    ``g`` is close to ``y * sum(g)``, and the sum is the same in all rows. Where ``g`` has one element in a
    row, that and the sum are rounded alike.

    Rows of keys and values that are much alike give a gradient ``g`` of which most is the same all along a
    row, and cancels. A rounded sum leaves the same part of it in the whole row, which adds up in the product
    that follows, and so do shares ``y`` that are alike, as attention begins with: they round alike, and no
    longer add up to one. Roundings of ``g`` and ``y * g`` differ from element to element, and average out;
    those of ``O * dO``, the attention's output and its gradient, whose sum FlashAttention takes in place of
    ``sum(y * g)``, do not.

    Shares ``y`` come from a softmax, or are ``e / sum(e)``; factors that are the same all along a row do not
    count. Means are those over samples, tokens and positions, which the gradient of a weight sums over: axes
    before the last, the first and any other, and the last of tensors that are as large as what a convolution
    along positions reads or writes. What multiplies both ``g`` and its mean, as the scale of a batch
    normalization does, is needed as exactly. Not meant are means over features, which are rounded token by
    token, and those over images: inputs of a convolution have less in common, and the gradients of batch
    normalizations were right in FP16 and BF16.
    """
    expansions, nodes = Expansions(values), Labels()
    search = _Search(values, expansions)
    for node in filter(lambda node: node.outputs, values.view.nodes):
        expansions.add(node)
        nodes.mark(search.removing(node), node.outputs[0])
    return nodes


class _Search:
    """Differences that take a mean off, and the nodes that compute it."""

    def __init__(self, values: GraphValues, expansions: Expansions) -> None:
        self._values, self._view, self._expansions = values, values.view, expansions
        self._places = {node.name: place for place, node in enumerate(self._view.nodes)}
        self._walk = Walk[str](())  # behind differences

    def removing(self, node: OpNode) -> list[str]:
        """Nodes between a mean and a difference from it whose rounding is the same all along a row."""
        if node.op in _GRADIENTS:
            return [node.name, *self._behind(node.inputs[1:])]  # of (gradient, shares)
        names: list[str] = []
        removed: set[Addend] = set()
        terms = self._expansions.terms(node)
        totals = [(i, a) for i, term in enumerate(terms) for a in term if a.terms]
        others = [(i, a) for i, term in enumerate(terms) for a in term if not a.terms] if totals else []
        of_factor: dict[str, list[tuple[int, Addend]]] = {}
        for i, a in others:
            for factor in a.factors:
                of_factor.setdefault(factor, []).append((i, a))
        for place, total in totals:
            for its, other in dict.fromkeys(o for t in sorted(total.terms) for o in of_factor.get(t, ())):
                if place == its or total.sign == other.sign:
                    continue
                if self._is_weighted(total, other):
                    names += [node.name, *self._behind((*node.inputs, *total.terms))]
                elif total.is_over_samples and total.terms | total.factors <= other.factors:
                    names += [node.name, *self._computing(total, other.factors - total.terms, node)]
                    removed.add(total)
        if removed:
            self._expansions.cancel(node.outputs[0], removed)
        return names

    def _computing(self, total: Addend, factors: frozenset[str], node: OpNode) -> Iterator[str]:
        """Nodes that compute a mean that a node takes off, and the factors of both of its terms.

        A factor by which a node multiplies on the way to one of them alone may not be rounded there.
        """
        walk, summed = Walk(node.inputs), set[str]()
        for tensor in walk:
            producer, addends = self._view.producer.get(tensor), self._expansions.expanded(tensor)
            if producer is None or tensor != producer.outputs[0]:
                continue
            is_mean = any(a.terms == total.terms for a in addends)
            is_row = producer.op in MOVES and self._expansions.is_row(tensor)
            if is_mean or is_row or self._is_factor(tensor, factors):
                yield producer.name
                walk.add(producer.inputs)
            if is_mean and (terms := self._expansions.summed(tensor)):
                summed.add(terms)
        on_one_side = self._on_one_side(summed, node.inputs, total.terms)
        for name in sorted(on_one_side) if summed else ():
            scales = self._view.node[name].inputs if self._view.node[name].op in SCALES else ()
            if any(self._expansions.is_row(t) or self._is_factor(t, factors) for t in scales):
                yield name

    def _is_factor(self, tensor: str, factors: frozenset[str]) -> bool:
        """Whether a tensor is a product of some of the factors."""
        return any(a.factors and a.factors <= factors for a in self._expansions.expanded(tensor)[:1])

    def _on_one_side(self, ones: Iterable[str], others: Iterable[str], factors: frozenset[str]) -> set[str]:
        """Nodes that a product comes through to one of two groups of tensors only.

        They are the carriers: what moves, scales or adds to it. Last ones first, until all left lead to both.
        """
        sides: dict[int, int] = {}  # of the producers that are due, by place: 1, 2, or 3 for both
        due: list[int] = []
        unlike = 0

        def reach(tensors: Iterable[str], side: int) -> None:
            nonlocal unlike
            for tensor in tensors:
                producer = self._view.producer.get(tensor)
                if producer is None or not any(
                    factors <= a.factors for a in self._expansions.expanded(tensor)
                ):
                    continue
                place = self._places[producer.name]
                before = sides.get(place, 0)
                if not before:
                    heappush(due, -place)
                sides[place] = before | side
                unlike += (before | side != 3) - (before in (1, 2))

        reach(ones, 1)
        reach(others, 2)
        names: set[str] = set()
        while due and unlike:
            place = -heappop(due)
            node, side = self._view.nodes[place], sides.pop(place)
            if side != 3:
                unlike -= 1
                names.add(node.name)
            reach(node.inputs, side)
        return names

    def _behind(self, tensors: Iterable[str]) -> Iterator[str]:
        """Nodes from shares to a difference whose rounding is the same all along a row, but for earlier ones.

        They are the softmax, sums, what is computed of sums only, and what multiplies by it.
        """
        walk = self._walk
        walk.add(tensors)
        for tensor in walk:
            producer = self._view.producer.get(tensor)
            if producer is None:
                continue
            if self._expansions.is_normalized(tensor):
                yield producer.name
                walk.add(filter(self._expansions.is_logarithm, producer.inputs))
                continue
            if self._expansions.is_logarithm(tensor):
                yield producer.name
                walk.add(
                    t
                    for t in producer.inputs
                    if self._expansions.is_logarithm(t) or self._expansions.is_row(t)
                )
                continue
            if producer.op in CONTRACTIONS:  # the attention's output, and the shares that it is made of
                walk.add(t for t in producer.inputs if self._expansions.multiplies_shares(t))
            is_sum = any(a.terms for a in self._expansions.expanded(tensor)[:1])
            is_row = any(map(self._expansions.is_row, (tensor, *producer.inputs)))
            if is_sum or is_row or self._expansions.has_weighted_mean(tensor):
                yield producer.name
            elif self._expansions.origin(tensor) == tensor and not self._expansions.is_product(tensor):
                continue
            walk.add(producer.inputs if producer.op in SCALES else carried(producer))

    def _is_one_hot(self, tensor: str) -> bool:
        """Whether a row has one element, whose rounding is that of the row's sum."""
        producer = self._view.producer.get(tensor)
        is_placed = producer is not None and producer.op in _PLACES
        return is_placed or self._values.range(tensor).from_integers

    def _is_weighted(self, total: Addend, other: Addend) -> bool:
        """Whether a sum is a mean of something, weighted by shares, or shares in a sum of something."""
        if total.terms == other.factors and not any(map(self._is_one_hot, total.terms)):
            return any(map(self._expansions.are_shares, total.factors))
        return len(total.terms) > 1 and any(
            self._expansions.are_shares(t) and other.factors == total.factors | (total.terms - {t})
            for t in total.terms
        )
