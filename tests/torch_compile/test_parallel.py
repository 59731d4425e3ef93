"""The report says what runs of a model whose graphs read other tensors than its parameters."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

import torch.distributed as dist
from against_eager import compiled
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from campo_onnx.integrations.torch_compile import report


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(600, 600)

    def forward(self, x: Any) -> Any:
        return self.layer(x).tanh()


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return x


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process."""
    before = os.environ.get("GLOO_SOCKET_IFNAME")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    os.environ.pop("GLOO_SOCKET_IFNAME")
    os.environ |= {} if before is None else {"GLOO_SOCKET_IFNAME": before}


@pytest.mark.usefixtures("alone")
def test_buckets_are_graphs_of_the_model() -> None:
    """Each weight has 1.4 MB, and a bucket 1 MB."""
    module, x = Blocks(), torch.randn(2, 600)
    compiled(DistributedDataParallel(module, bucket_cap_mb=1))(x).sum().backward()
    assert len(report(module).graphs) == 3
    assert not report(Blocks()).graphs


@pytest.mark.usefixtures("alone")
def test_sharded_blocks_are_graphs_of_the_model() -> None:
    module, x = Blocks(), torch.randn(2, 600)
    mesh = init_device_mesh("cpu", (1,))
    for block in module.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)
    compiled(module)(x).sum().backward()
    assert report(module).graphs
    assert not report(Blocks()).graphs


def test_nothing_runs_of_a_forward_that_torch_does_not_compile() -> None:
    module = nn.Sequential(nn.Linear(4, 4))
    module.compile(backend="campo_onnx")
    module(torch.randn(2, 4))
    assert "torch.compile(module" in str(report(module))
