"""DistributedDataParallel on two processes (gloo), each of which trains through campo_onnx.

    python examples/torch_compile_ddp.py [DEVICE]

Both start from the same weights, take half of each batch, and average gradients: what one process computes
on the whole batch. Needs ``pip install "campo-onnx[torch]"``.
"""

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PROCESSES, ROWS = 2, 32


def network() -> nn.Module:
    """Some layers; no dropout, since each process would draw its own."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 8))


def batches(steps: int) -> list[torch.Tensor]:
    """The batches of all processes together."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(PROCESSES * ROWS, 64, generator=generator) for _ in range(steps)]


def work(rank: int, meeting: str, written: str, plan_for: str, steps: int) -> None:
    """Train one process's half; the first one writes the losses and the weights."""
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=PROCESSES)
    model = network()
    parallel = DistributedDataParallel(model)
    # By default each process would measure for itself which runtime is faster, beside the others.
    options = {"device": plan_for, "runtime": "onnxruntime"}
    compiled = torch.compile(parallel, backend="campo_onnx", options=options)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    losses = []
    for batch in batches(steps):
        x = batch[rank::PROCESSES]
        loss = nn.functional.mse_loss(compiled(x), x[:, :8].tanh())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(mean := loss.detach().clone() / PROCESSES)
        losses.append(mean.item())
    if rank == 0:
        torch.save((losses, model.state_dict()), written)
    dist.destroy_process_group()


def train(plan_for: str = "auto", steps: int = 20) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Train two processes, and return losses and weights."""
    with tempfile.TemporaryDirectory() as folder:
        meeting, written = (str(Path(folder) / name) for name in ("meeting", "written"))
        # Processes of a fork server end at once. Spawned ones take their interpreter apart first, and abort
        # where a thread of gloo lets go of a tensor meanwhile.
        torch.multiprocessing.start_processes(
            work, (meeting, written, plan_for, steps), PROCESSES, start_method="forkserver"
        )
        return torch.load(written)


if __name__ == "__main__":
    losses, _ = train(*sys.argv[1:2])
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
