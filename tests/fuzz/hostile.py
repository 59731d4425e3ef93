"""Values that programs trip over."""

HOSTILE_TEXTS = (
    "",
    "\0",
    "a\n::error::b\n::stop-commands::x\n##[error]c",
    "\x1b[2J\x1b]0;title\x07",
    "\u202eevil\u2066",
    "[red]x[/red] [/] [link=file:///etc/passwd]y",
    "../../../etc/passwd",
    "/etc/passwd",
    "x" * 300,
    "x" * 70_000,
    "\ud800",
    "%s%n{0}{x}",
    "9" * 5000,
    "NaN",
    "-1",
    "ai.onnx",
    "com.microsoft",
)
HOSTILE_INTS = (0, -1, 1, 2, 7, 255, 2**31 - 1, -(2**31), 2**31, 2**62, 2**63 - 1, -(2**63))
HOSTILE_FLOATS = (0.0, -0.0, -1.0, 1e-320, 1e308, float("inf"), float("-inf"), float("nan"))
