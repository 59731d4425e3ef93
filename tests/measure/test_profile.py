"""Profiles of FP32 steps: taken, kept, refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import polars as pl
import pytest

from campo_onnx.errors import DeviceMismatchError, ProfileError, UsageError
from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.measure.counters import COUNTERS
from campo_onnx.measure.events import EVENTS
from campo_onnx.measure.node_timer import NodeTimer
from campo_onnx.measure.profile import Profile, read_profile, sealed, write_profile
from campo_onnx.measure.profiler import take_profile
from campo_onnx.measure.store import Store
from campo_onnx.runtime.api import NodeTime, StepTimes
from campo_onnx.runtime.feeds import synthesize
from campo_onnx.runtime.onnxruntime.program import OnnxProgram
from campo_onnx.runtime.registry import machine
from campo_onnx.runtime.timing import Effort, Timing
from campo_onnx.targets.detect import target_of

DATA = Path(__file__).parent.parent / "data"
HERE = machine("cpu", threads=1)


def taken(imported: Imported, steps: int = 3) -> Profile:
    timer = NodeTimer(machine=HERE, store=Store(), effort=Effort(warmup=1, repeats=3, least=1, budget_s=0.01))
    return take_profile(imported, synthesize(imported.view), timer, target_of(HERE), steps=steps)


@pytest.fixture(scope="module")
def imported() -> Imported:
    return import_model(DATA / "mlp.onnx")


@pytest.fixture(scope="module")
def profile(imported: Imported) -> Profile:
    return taken(imported)


def test_a_row_for_every_node_in_order(profile: Profile, imported: Imported) -> None:
    assert profile.table["node"].to_list() == [node.name for node in imported.view.nodes]
    assert profile.failed == 0
    assert set(profile.table["measured"]) == {"trace", "constant"}
    assert 0 < profile.nodes_us <= profile.step_us
    gemm = profile.table.row(by_predicate=pl.col("node") == "node_addmm", named=True)
    assert gemm["inputs"] == "float32[8,784] float32[784,256] float32[256]"
    assert gemm["flops"] == 2 * 8 * 784 * 256
    assert gemm["fp32_us"] > 0
    assert set(EVENTS) <= set(gemm)


def test_times_come_from_the_trace(imported: Imported, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = [node.name for node in imported.view.nodes if node.op.op_type != "Constant"]
    times = {name: Timing(median_us=10.0 + i, spread_us=0.5, repeats=3) for i, name in enumerate(computed)}
    step = Timing(median_us=5000.0, spread_us=1.0, repeats=3)
    nodes = tuple(NodeTime(nodes=(n,), kernel="", precision=None, time=time) for n, time in times.items())
    told = StepTimes(nodes=nodes, step=step, accounted=0.9)
    monkeypatch.setattr(OnnxProgram, "node_times", lambda *_, **__: told)
    profile = taken(imported)
    constants = {node.name: 0.0 for node in imported.view.nodes if node.op.op_type == "Constant"}
    assert profile.fp32_us() == constants | {name: timing.median_us for name, timing in times.items()}
    assert profile.nodes_us == sum(timing.median_us for timing in times.values())
    assert (profile.step_us, profile.accounted) == (5000.0, 0.9)


def test_node_that_the_runtime_takes_apart_is_timed_alone() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["": 20]>
        g (float[64,64] x) => (float[64,64] z) { y = Mish(x) z = Relu(y) }
    """)
    profile = taken(import_model(model))
    assert profile.table["measured"].to_list() == ["one-node", "trace"]
    assert profile.failed == 0


def test_progress_counts_up(imported: Imported) -> None:
    seen: list[tuple[int, int]] = []
    timer = NodeTimer(machine=HERE, store=Store())
    take_profile(
        imported,
        synthesize(imported.view),
        timer,
        target_of(HERE),
        steps=2,
        on_progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_file_round_trip(profile: Profile, tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    write_profile(profile, path)
    back = read_profile(path)
    assert back.table.equals(profile.table)
    assert replace(back, table=profile.table) == profile
    assert [p.name for p in tmp_path.iterdir()] == ["p.parquet"]


def test_fits_only_its_graph_and_device(profile: Profile, imported: Imported) -> None:
    profile.check_fits(imported.view)
    profile.check_device(replace(HERE, ort="another"))
    with pytest.raises(ProfileError, match="another graph"):
        profile.check_fits(import_model(DATA / "alexnet_like.onnx").view)
    with pytest.raises(DeviceMismatchError, match="H200"):
        profile.check_device(replace(HERE, device="H200"))
    with pytest.raises(DeviceMismatchError, match="without TF32: the costs are for FP32 with TF32"):
        profile.check_device(replace(HERE, tf32=True))


def test_counters_by_node(profile: Profile) -> None:
    first = profile.table["node"][0]
    counted = profile.table.with_columns(
        pl.when(pl.col("node") == first).then(pl.lit(5.0)).alias(COUNTERS[0])
    )
    assert replace(profile, table=counted).counters() == {first: {COUNTERS[0]: 5.0}}


def test_full_disk(profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_table: object, file: Path, **_: object) -> None:
        file.write_bytes(b"half")
        raise pl.exceptions.ComputeError("No space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    with pytest.raises(UsageError, match="No space left"):
        write_profile(profile, tmp_path / "p.parquet")
    assert list(tmp_path.iterdir()) == []


def test_bad_files(profile: Profile, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        read_profile(tmp_path / "none.parquet")
    garbage = tmp_path / "garbage.parquet"
    garbage.write_bytes(b"PAR1 garbage PAR1")
    with pytest.raises(ProfileError, match="cannot be read"):
        read_profile(garbage)
    foreign = tmp_path / "foreign.parquet"
    pl.DataFrame({"a": np.arange(3)}).write_parquet(foreign)
    with pytest.raises(ProfileError, match="something else"):
        read_profile(foreign)
    write_profile(profile, tmp_path / "whole.parquet")
    cut = tmp_path / "cut.parquet"
    cut.write_bytes((tmp_path / "whole.parquet").read_bytes()[:-50])
    with pytest.raises(ProfileError, match="cannot be read"):
        read_profile(cut)
    with pytest.raises(UsageError, match="cannot be written"):
        write_profile(profile, tmp_path / "missing" / "p.parquet")
    write_profile(profile, tmp_path / "older.parquet")
    unsealed = (tmp_path / "older.parquet").read_bytes().replace(b"campo-onnx blake2b", b"-" * 18)
    (tmp_path / "older.parquet").write_bytes(unsealed)
    with pytest.raises(ProfileError, match="an older campo-onnx wrote it"):
        read_profile(tmp_path / "older.parquet")
    with pytest.raises(UsageError, match="is a folder"):
        read_profile(tmp_path)


@pytest.mark.slow
def test_no_damaged_byte_is_read(profile: Profile, tmp_path: Path) -> None:
    """Some would change a time, others end the process in the reader of parquet."""
    path = tmp_path / "p.parquet"
    write_profile(profile, path)
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(ProfileError):
            read_profile(path)


def test_sealed_values_are_checked_too(profile: Profile, tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    write_profile(profile, path)
    metadata = {k: v for k, v in pl.read_parquet_metadata(path).items() if k.startswith("campo-onnx")}
    for table, why in (
        (profile.table.with_columns(fp32_us=pl.lit(float("nan"))), "not a valid number"),
        (profile.table.drop("op"), "op"),
        (profile.table.with_columns(fp32_us=pl.lit("fast")), "fast"),
    ):
        table.write_parquet(path, metadata=metadata)
        path.write_bytes(sealed(path.read_bytes()))
        with pytest.raises(ProfileError, match=why):
            read_profile(path)


def test_a_profile_from_before_an_event_was_added_is_read(profile: Profile, tmp_path: Path) -> None:
    write_profile(replace(profile, table=profile.table.drop("channels")), tmp_path / "old.parquet")
    read = read_profile(tmp_path / "old.parquet")
    assert read.fp32_us() == profile.fp32_us()
    assert read.table["channels"].null_count() == len(read.table)
