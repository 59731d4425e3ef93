"""Draw the pictures of docs/concepts.md.

    python docs/make_pictures.py

FP16 is hatched, so that they can be read in black and white.
"""

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt
from matplotlib.patches import FancyBboxPatch

FOLDER = Path(__file__).parent / "pictures"
FP32, FP16, CAST = "#cfd8e3", "#f2c879", "#ffffff"
mpl.rcParams |= {
    "svg.hashsalt": "campo-onnx",
    "svg.fonttype": "none",
    "font.size": 10,
    "hatch.linewidth": 0.4,
}


class Picture:
    """Boxes and arrows on a plain sheet."""

    def __init__(self, width: float, height: float) -> None:
        self.figure, self.axes = plt.subplots(figsize=(width, height))
        self.axes.set_xlim(0, width)
        self.axes.set_ylim(0, height)
        self.axes.axis("off")
        self.figure.patch.set_facecolor("white")

    def box(
        self, x: float, y: float, text: str, colour: str = FP32, width: float = 1.5, height: float = 0.6
    ) -> None:
        """Draw a box with its centre at (x, y)."""
        patch = FancyBboxPatch(
            (x - width / 2, y - height / 2),
            width,
            height,
            boxstyle="round,pad=0.02,rounding_size=0.08",
            facecolor=colour,
            edgecolor="#333333",
            hatch="///" if colour == FP16 else "",
            linewidth=0.9,
        )
        self.axes.add_patch(patch)
        label: dict[str, Any] = {"facecolor": colour, "edgecolor": "none", "pad": 1.0}
        self.axes.text(x, y, text, ha="center", va="center", bbox=label)

    def arrow(self, start: tuple[float, float], end: tuple[float, float], style: str = "-|>") -> None:
        """Draw an arrow."""
        self.axes.annotate("", end, start, arrowprops={"arrowstyle": style, "color": "#333333", "lw": 0.9})

    def text(self, x: float, y: float, text: str, **options: Any) -> None:
        """Write a line."""
        self.axes.text(x, y, text, **({"ha": "center", "va": "center"} | options))

    def save(self, name: str) -> None:
        """Write the file."""
        FOLDER.mkdir(exist_ok=True)
        self.figure.savefig(FOLDER / f"{name}.svg", bbox_inches="tight", metadata={"Date": None})
        plt.close(self.figure)


def step() -> None:
    """The training step."""
    picture = Picture(9.2, 2.9)
    for x, text, colour in (
        (1.6, "forward\npass", FP16),
        (3.9, "loss", FP32),
        (6.0, "backward\npass", FP16),
        (8.2, "weight\nupdate", FP32),
    ):
        picture.box(x, 1.6, text, colour, height=0.9)
    for start, end in ((2.35, 3.15), (4.65, 5.25), (6.75, 7.45)):
        picture.arrow((start, 1.6), (end, 1.6))
    picture.text(1.6, 2.55, "batch, FP32 master weights")
    picture.arrow((1.6, 2.4), (1.6, 2.07))
    picture.text(3.9, 0.6, "loss")
    picture.arrow((3.9, 1.28), (3.9, 0.75))
    picture.text(8.2, 0.6, "new weights, optimizer state")
    picture.arrow((8.2, 1.13), (8.2, 0.75))
    picture.text(4.6, 0.12, "hatched: may run in FP16, node by node; plain: stays FP32", fontsize=9)
    picture.save("step")


def lists() -> None:
    """The four classes."""
    picture = Picture(9.2, 2.2)
    for x, name, colour, examples, meaning in (
        (1.2, "allow", FP16, "MatMul, Conv", "gains from\ntensor cores"),
        (3.5, "infer", FP16, "Add, Mul, Softmax", "safe, unless what it\nreads was unsafe"),
        (5.8, "clear", FP16, "Reshape, Relu", "changes no digits:\nas its neighbours"),
        (8.1, "deny", FP32, "Exp, Sum, loss", "loses accuracy:\nFP32, and taints"),
    ):
        picture.box(x, 1.7, name, colour)
        picture.text(x, 1.1, examples, style="italic", fontsize=9)
        picture.text(x, 0.5, meaning, fontsize=9)
    picture.save("lists")


def casts() -> None:
    """Shared casts."""
    picture = Picture(9.2, 2.9)
    picture.box(1.2, 1.5, "LayerNorm")
    picture.box(3.5, 1.5, "Cast", CAST, width=1.0, height=0.45)
    picture.arrow((1.95, 1.5), (3.0, 1.5))
    for y, text in ((2.4, "query: MatMul"), (1.5, "key: MatMul"), (0.6, "value: MatMul")):
        picture.box(6.1, y, text, FP16, width=1.9)
        picture.arrow((4.0, 1.5), (5.12, y))
    picture.text(3.5, 1.05, "one for all three", fontsize=9)
    picture.text(8.2, 1.5, "each alone\nwould pay for it", fontsize=9)
    picture.save("casts")


def cut() -> None:
    """The minimum cut."""
    picture = Picture(9.2, 3.4)
    picture.box(0.9, 1.7, "FP16", FP16, width=1.1)
    picture.box(8.3, 1.7, "FP32", FP32, width=1.1)
    for x, y, text, colour in (
        (3.0, 2.6, "MatMul", FP16),
        (3.0, 0.8, "Gelu", FP16),
        (6.2, 2.6, "Exp", FP32),
        (6.2, 0.8, "ReduceSum", FP32),
    ):
        picture.box(x, y, text, colour, width=1.3)
    for start, end in (
        ((1.47, 1.8), (2.33, 2.5)),
        ((1.47, 1.6), (2.33, 0.9)),
        ((6.87, 2.5), (7.73, 1.8)),
        ((6.87, 0.9), (7.73, 1.6)),
        ((3.0, 2.28), (3.0, 1.12)),
        ((3.67, 2.6), (5.53, 2.6)),
        ((3.67, 0.8), (5.53, 0.8)),
        ((6.2, 2.28), (6.2, 1.12)),
    ):
        picture.arrow(start, end, "-")
    picture.axes.plot([4.6, 4.6], [0.3, 3.1], linestyle="--", color="#b02a2a")
    picture.text(4.6, 3.25, "the cut: two casts are cheaper than any other line", color="#b02a2a", fontsize=9)
    picture.text(
        4.6,
        0.1,
        "edges to FP16 and FP32: the time that a node would lose there; edges between nodes: the Cast",
        fontsize=9,
    )
    picture.save("cut")


if __name__ == "__main__":
    for draw in (step, lists, casts, cut):
        draw()
