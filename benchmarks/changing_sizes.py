"""Two hundred training steps of random lengths: torch eager, torch.compile(dynamic=True), and this backend.

    python -m benchmarks.changing_sizes [--steps N] [--width N] [--layers N]

A process each, one after the other; the time of all steps, with what they compile, and of the second half.
Prints a table, and writes nothing.
"""

import argparse
import subprocess
import sys
import time
from typing import Any

SIDES = ("torch eager", "torch.compile", "campo_onnx", "campo_onnx in onnxruntime")
BATCH, SHORTEST, LONGEST = 8, 8, 96


def steps(side: str, count: int, width: int, layers: int) -> tuple[float, float, float]:
    """Give the seconds of all steps and of the second half, and the last loss."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(1000, width), encoder, nn.Linear(width, 1000))
    run: Any = model
    if side == "torch.compile":
        run = torch.compile(model, dynamic=True)
    elif side.startswith("campo_onnx"):
        runtime = "onnxruntime" if side.endswith("onnxruntime") else "auto"
        run = torch.compile(model, backend="campo_onnx", options={"runtime": runtime, "plans": None})
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    lengths = torch.randint(SHORTEST, LONGEST + 1, (count,)).tolist()
    began, half, loss = time.perf_counter(), 0.0, torch.zeros(())
    for number, length in enumerate(lengths):
        if number == count // 2:
            half = time.perf_counter()
        ids = torch.randint(0, 1000, (BATCH, length))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(run(ids).flatten(0, 1), ids.flatten())
        loss.backward()
        optimizer.step()
    ended = time.perf_counter()
    return ended - began, ended - half, float(loss)


def main() -> None:
    """Run every side in a process of its own, or one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--side", choices=SIDES)
    options = parser.parse_args()
    if options.side:
        print(*steps(options.side, options.steps, options.width, options.layers))
        return
    seconds = {}
    for side in SIDES:
        command = [sys.executable, "-m", "benchmarks.changing_sizes", *sys.argv[1:], "--side", side]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        seconds[side] = list(map(float, done.stdout.split()[-3:]))
        whole, half, loss = seconds[side]
        beside = seconds.get("torch.compile", [1.0])[0]
        share = f"{whole / beside:.2f} of compile" if "torch.compile" in seconds else ""
        print(f"{side:26} {whole:7.1f} s, second half {half:7.1f} s, loss {loss:.5f} {share}", flush=True)


if __name__ == "__main__":
    main()
