"""Padding as choices of a minimum cut, beside those of precision or by themselves."""

from campo_onnx.optimize.minimum_cut import Network
from campo_onnx.optimize.problem import Padding


def padded_choice(node: str) -> str:
    """Name of the choice whether a product is padded; no node is called like that."""
    return f"{node}\0padded"


def pay_for_pads(network: Network, padding: Padding) -> None:
    """Add to a network what padding gains and costs; its choices are called :func:`padded_choice`."""
    for name, gain_us in padding.gains_us.items():
        network.gain(gain_us - padding.threshold_us, padded_choice(name))
    for pad in padding.pads:
        unpadded = None if pad.if_unpadded is None else tuple(map(padded_choice, pad.if_unpadded))
        network.pay(pad.pad_us, yes=tuple(map(padded_choice, pad.if_padded)), no=unpadded)
