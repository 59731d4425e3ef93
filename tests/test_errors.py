"""Messages and exit codes."""

import pytest

from campo_onnx import errors
from campo_onnx.errors import CampoError, ModelError

DOCUMENTED = {
    "CampoError": 1,
    "InternalError": 1,
    "UsageError": 2,
    "IndexOutOfRangeError": 2,
    "ModelError": 3,
    "UnsupportedModelError": 4,
    "ProfileError": 5,
    "CheckpointError": 5,
    "DeviceMismatchError": 6,
    "PlanMismatchError": 7,
    "DeviceUnavailableError": 8,
    "OutOfMemoryError": 8,
    "CheckFailedError": 9,
}


def test_exit_codes_are_the_documented_ones():
    exit_codes = {
        name: value.exit_code
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, CampoError)
    }
    assert exit_codes == DOCUMENTED


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, "it broke."),
        ({"why": "too old"}, "it broke: too old."),
        ({"remedy": "Mend it."}, "it broke. Mend it."),
        ({"why": "too old.", "remedy": "Mend it."}, "it broke: too old. Mend it."),
    ],
)
def test_messages(parts, message):
    error = ModelError("it broke", **parts)
    assert str(error) == message
    assert error.args == (message,)
