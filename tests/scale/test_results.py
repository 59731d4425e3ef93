"""The file of results: appended, whole lines only, one writer, nothing of others harmed."""

import errno
import json
import os
import subprocess
import sys

import pytest

from campo_onnx.errors import UsageError
from campo_onnx.files.codec import fingerprint
from campo_onnx.scale.results import Results


def keys_in(path):
    return [json.loads(line)["key"] for line in path.read_text().splitlines()]


def test_what_is_added_is_there_when_the_file_is_opened_again(tmp_path):
    path = tmp_path / "new" / "rows.jsonl"
    with Results(path) as results:
        results.add("a", {"x": 1.5})
        results.add("b", [1, None])
        results.add("a", "the first one stays")
    with Results(path) as results:
        assert dict(results) == {"a": {"x": 1.5}, "b": [1, None]}
    assert keys_in(path) == ["a", "b"]


def test_a_line_that_a_kill_cut_short_is_done_again(tmp_path):
    path = tmp_path / "rows.jsonl"
    with Results(path) as results:
        results.add("a", 1)
        results.add("b", 2)
    whole = path.read_bytes()
    for size in range(len(whole) // 2 + 1, len(whole) - 1):
        path.write_bytes(whole[:size])
        with Results(path) as results:
            assert dict(results) == {"a": 1}
            assert path.read_bytes() == whole[:size]  # who only reads changes nothing
            results.add("b", 2)
        assert path.read_bytes() == whole


def test_a_whole_line_without_its_newline_is_kept(tmp_path):
    path = tmp_path / "rows.jsonl"
    text = json.dumps({"key": "a", "value": 1, "digest": fingerprint(["a", 1])})
    path.write_text(text)
    with Results(path) as results:
        assert dict(results) == {"a": 1}
        assert path.read_text() == text
        results.add("b", 2)
        results.add("c", 3)
    assert keys_in(path) == ["a", "b", "c"]


def test_a_result_that_was_edited_is_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    with Results(path) as results:
        results.add("a", {"status": "failed"})
        results.add("b", 2)
    edited = path.read_text().replace("failed", "passed")
    path.write_text(edited)
    with pytest.raises(UsageError, match=r"rows\.jsonl, line 1 was changed since it was written: its digest"):
        Results(path)
    assert path.read_text() == edited


def test_a_result_without_a_digest_is_worked_out_again(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"key": "a", "value": 1}\n')
    with Results(path) as results:
        assert dict(results) == {}
        results.add("a", 2)
    with Results(path) as results:
        assert dict(results) == {"a": 2}


@pytest.mark.parametrize("text", ["hello", "hello\n", '{"key": "a"}\n', '{"key": 1, "value": 2}\n', "\n"])
def test_other_files_are_refused_and_left_alone(tmp_path, text):
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"notes\.txt, line 1 is not a result of campo-onnx"):
        Results(path)
    assert path.read_text() == text


def test_a_second_writer_is_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    with Results(path), pytest.raises(UsageError, match="are in use: another process is writing them"):
        Results(path)
    Results(path).close()


def test_a_full_disk_loses_nothing_and_leaves_no_half_line(tmp_path, monkeypatch):
    path, write = tmp_path / "rows.jsonl", os.write
    with Results(path) as results:
        results.add("a", 1)

        def full(file, data):
            if len(data) > 5:
                return write(file, data[:5])
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(os, "write", full)
            with pytest.raises(
                UsageError, match=r"No space left on device\. Free the disk .*1 results are kept"
            ):
                results.add("b", "x" * 3)
        assert keys_in(path) == ["a"]
        results.add("b", 2)
    assert keys_in(path) == ["a", "b"]


def test_a_limit_of_the_operating_system_is_met_for_real(tmp_path):
    path = tmp_path / "rows.jsonl"
    program = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from campo_onnx.scale.results import Results\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "results = Results(Path(sys.argv[1]))\n"
        "for i in range(100): results.add(str(i), 'x' * 50)\n"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", program, str(path)],  # byte code would be cut off as well
        capture_output=True,
        text=True,
        check=False,
    )
    assert "cannot be written: File too large" in done.stderr
    kept = keys_in(path)
    assert kept == [str(i) for i in range(len(kept))]
    assert 5 < len(kept) < 15
