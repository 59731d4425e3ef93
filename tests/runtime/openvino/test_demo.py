"""``campo-onnx demo`` where OpenVINO computes in BF16: a step measured before and after."""

import re
from pathlib import Path

from campo_onnx.targets.detect import cpu_with_low_precision

STEP = Path(__file__).parents[2] / "data" / "alexnet_like.onnx"


def test_the_step_is_planned_for_this_cpu_and_measured(bf16_units, capsys):
    from campo_onnx_cli.demo import measure_here

    here = cpu_with_low_precision()
    assert here is not None
    assert here.runtime.name == "openvino"
    measure_here(STEP)
    printed = capsys.readouterr()
    assert f"This machine ({here.name}) computes in BF16 with openvino" in printed.err
    assert re.search(r"fp32 \S+ .s, bf16 \S+ .s: \S+x, 95 % interval \S+ to \S+ \(", printed.err)
    assert printed.out == ""
