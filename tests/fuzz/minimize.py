"""Makes a failure small: the broken file goes back to the sound one, then gets shorter, while it fails.

Differences from the sound file are put back first, since one of many is usually to blame. Then parts are
left out: elements and fields of a model or a document, else bytes.
"""

import difflib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import onnx
from google.protobuf.message import DecodeError, Message

Fails = Callable[[bytes], bool]

_MOST_BYTES = 200_000  # more are not compared byte by byte


def minimized(broken: bytes, sound: bytes, suffix: str, fails: Fails) -> bytes:
    """Return a file that still fails, with as little in it that is broken as can be found.

    Parameters
    ----------
    broken
        A file for which `fails` holds.
    sound
        What it was made from.
    suffix
        What kind of file it is.
    fails
        Whether what is looked for still happens with a file of some content.
    """
    best = _with_less_changed(broken, sound, fails)
    if suffix == ".onnx":
        best = _smaller_model(best, fails)
    elif suffix == ".json":
        best = _smaller_document(best, fails)
    elif suffix == ".toml":
        lines = best.splitlines(keepends=True)
        return b"".join(fewest(lines, lambda kept: fails(b"".join(kept))))
    return best


def fewest(items: Sequence[Any], fails: Callable[[list[Any]], bool]) -> list[Any]:
    """Leave out items, many at a time and then fewer, as long as what is left fails.

    Examples
    --------
    >>> fewest(range(100), lambda kept: 17 in kept and 80 in kept)
    [17, 80]
    """
    kept = list(items)
    size = max(1, len(kept) // 2)
    while kept:
        before = len(kept)
        at = 0
        while at < len(kept):
            attempt = kept[:at] + kept[at + size :]
            if fails(attempt):
                kept = attempt
            else:
                at += size
        if size == 1 and len(kept) == before:
            break
        size = max(1, size // 2)
    return kept


def _with_less_changed(broken: bytes, sound: bytes, fails: Fails) -> bytes:
    if max(len(broken), len(sound)) > _MOST_BYTES:
        return broken
    matcher = difflib.SequenceMatcher(None, sound.decode("latin-1"), broken.decode("latin-1"), autojunk=True)
    steps = [step for step in matcher.get_opcodes() if step[0] != "equal"]

    def with_steps(kept: Sequence[Any]) -> bytes:
        parts, at = [], 0
        for _, start, end, first, last in kept:
            parts += [sound[at:start], broken[first:last]]
            at = end
        return b"".join((*parts, sound[at:]))

    return with_steps(fewest(steps, lambda kept: fails(with_steps(kept))))


def _smaller_model(data: bytes, fails: Fails) -> bytes:
    try:
        model = onnx.ModelProto.FromString(data)
    except DecodeError:
        return data
    if not fails(model.SerializeToString()):
        return data
    shrinks = True
    while shrinks:
        shrinks = sum(_without_a_part(model, message, fails) for message in list(_messages(model))) > 0
    return model.SerializeToString()


def _messages(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for inner in value if field.is_repeated else (value,):
                yield from _messages(inner)


def _without_a_part(model: onnx.ModelProto, message: Message, fails: Fails) -> bool:
    """Clear fields of a message, and leave out elements; says whether one could go."""
    shrinks = False
    for field, value in message.ListFields():
        kept = type(message)()
        kept.CopyFrom(message)
        message.ClearField(field.name)
        if fails(model.SerializeToString()):
            shrinks = True
            continue
        message.CopyFrom(kept)
        if field.is_repeated and len(value) > 1:
            items = list(getattr(kept, field.name))

            def with_items(some: list[Any], name: str = field.name) -> bytes:
                message.ClearField(name)
                getattr(message, name).extend(some)
                return model.SerializeToString()

            fewer = fewest(items, lambda some, put=with_items: fails(put(some)))
            with_items(fewer)
            shrinks |= len(fewer) < len(items)
    return shrinks


def _smaller_document(data: bytes, fails: Fails) -> bytes:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return data
    if not fails(json.dumps(document).encode()):
        return data
    open_parts: list[Any] = [document]
    while open_parts:
        part = open_parts.pop()
        if isinstance(part, list):

            def put_list(some: list[Any], part: list[Any] = part) -> bytes:
                part[:] = some
                return json.dumps(document).encode()

            put_list(fewest(part, lambda some, put=put_list: fails(put(some))))
            open_parts += part
        elif isinstance(part, dict):

            def put_dict(some: list[Any], part: dict[str, Any] = part) -> bytes:
                part.clear()
                part.update(some)
                return json.dumps(document).encode()

            put_dict(fewest(list(part.items()), lambda some, put=put_dict: fails(put(some))))
            open_parts += part.values()
    return json.dumps(document).encode()
