"""Whether a calibration is good enough to decide by."""

from campo_onnx.calibrate.calibration import Calibration

LEAST_ACCURACY = 0.7
"""M_A (1 minus the mean relative error on held-out shapes) below which a calibration is not taken by itself.

Low precision halves the time of a node that only moves memory. Where predictions of both precisions are
off by 30 % on average, it is no longer clear which of the two is faster.
"""


def doubt(calibration: Calibration) -> str:
    """Say why a calibration is too poor to decide by; ``""`` when it is not."""
    score = calibration.score
    what, figure = "operators", score
    if score is None or calibration.cast_score < LEAST_ACCURACY <= score:
        what, figure = "Casts", calibration.cast_score
    if figure is None or figure >= LEAST_ACCURACY:
        return ""
    return (
        f"M_A of its {what} on held-out shapes is {figure:.1%}, and {LEAST_ACCURACY:.0%} is needed to "
        "decide by; measure more shapes on an idle machine"
    )
