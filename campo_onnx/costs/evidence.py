"""Sources of costs: the user's choice, and the evidence at hand for it.

Light to import: nothing here needs ONNX Runtime.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from campo_onnx.calibrate.calibration import Calibration
    from campo_onnx.measure.profile import Profile
    from campo_onnx.measure.store import Store


class CostSource(StrEnum):
    """Source of costs.

    A user may ask for those in :data:`CHOICES`; tables and nodes say which one it was in the end.
    """

    AUTO = "auto"  # the best there is: a calibration, else measuring if the device is here, else figures
    MEASURE = "measure"  # every distinct node was timed
    MODEL = "model"  # a calibration of the device
    DATASHEET = "datasheet"  # public figures
    GENERAL = "general model"  # of a calibration that lacks the operator: one model for all of them
    SCALED = "scaled"  # raised to what a whole step was measured to take
    UNKNOWN = "unknown"  # nothing is known, and no time is counted


CHOICES = (CostSource.AUTO, CostSource.MEASURE, CostSource.MODEL, CostSource.DATASHEET)
"""Sources that a user can choose."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Evidence beside the device's figures."""

    # Of the device; None takes the user's own or the one that is shipped, if there is one.
    calibration: "Calibration | None" = None
    profile: "Profile | None" = None
    store: "Store | None" = None  # where measured times are looked up and kept; None measures without keeping
    threads: int = 0
    on_progress: Callable[[int, int], None] | None = None
