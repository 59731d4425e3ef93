"""Build a CUDA that is not there: libraries with which onnxruntime-gpu's CUDA provider loads without a GPU.

``python tests/cuda/stubs/build.py`` prints the folder to put on ``LD_LIBRARY_PATH``; it is built in seconds
and kept until ONNX Runtime or these sources change. Needs a C compiler, ``nm`` and ``strings``. Nothing that
runs on it is a measurement: see ``tests/cuda/README.md``.
"""

import hashlib
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
CACHE = HERE.parents[2] / ".cuda-stubs"
CUDART = "libcudart.so.13"
CUDNN = "libcudnn.so.9"
HEADERS = ("nvidia-cuda-runtime==13.0.*", "nvidia-cuda-crt==13.0.*")

# Functions whose result the provider looks at. Everything else returns 0, which is success everywhere.
SPECIAL = {
    "cublasGetMathMode": "int {name}(void *h, int *mode) {{ *mode = 0; return 0; }}",
    "cublasLtMatmulAlgoGetHeuristic": (
        "int {name}(void *h, void *a, void *b, void *c, void *d, void *e, void *p, int n, void *r,"
        " int *found) {{ memset(r, 0, 96); *found = 1; return 0; }}"
    ),
    "cudnnGetVersion": "size_t {name}(void) {{ return 91300; }}",
    "cudnnGetCudartVersion": "size_t {name}(void) {{ return 13000; }}",
    "cudnnGetErrorString": 'const char *{name}(int e) {{ return "stub"; }}',
    "cudnnGetLastErrorString": "void {name}(char *m, size_t n) {{ if (n) m[0] = 0; }}",
    "cudnnBackendCreateDescriptor": "int {name}(int t, void **d) {{ *d = calloc(1, 64); return 0; }}",
    "cudnnBackendDestroyDescriptor": "int {name}(void *d) {{ free(d); return 0; }}",
    # One engine configuration is always found (a descriptor, type 15), without knobs (attribute 302); a
    # number asked for (64 bits: type 3 and the enums below it; 32 bits: type 23) is 0.
    "cudnnBackendGetAttribute": (
        "int {name}(void *d, int attribute, int type, int64_t asked, int64_t *count, void *out) {{"
        " int is_long = type <= 4, is_int = type == 23, is_found = type == 15 && attribute != 302;"
        " if (count) *count = is_long || is_int || is_found;"
        " if (out && asked > 0 && is_long) *(int64_t *)out = 0;"
        " if (out && asked > 0 && is_int) *(int32_t *)out = 0;"
        " return 0; }}"
    ),
    "cuGetErrorString": 'int {name}(int e, const char **s) {{ *s = "stub"; return 0; }}',
    "cuGetErrorName": 'int {name}(int e, const char **s) {{ *s = "stub"; return 0; }}',
}
RULES = (
    (re.compile(r"GetStatus"), 'const char *{name}(int e) {{ return "stub"; }}'),
    (re.compile(r"^cudnnCreate|Create(_v2)?$"), "int {name}(void **h) {{ *h = calloc(1, 256); return 0; }}"),
    (re.compile(r"Workspace|Size|^cudnnFind"), "int {name}() {{ return 0; }}"),
    (
        re.compile(
            r"[gG]emm|geam|Matmul$|scal|copy|getr|Transform$|Forward|Execute$|ReduceTensor$|AddTensor"
        ),
        "int {name}() {{ return stub_launch(); }}",
    ),
    (re.compile(""), "int {name}() {{ return 0; }}"),
)
PREAMBLE = "#include <stdint.h>\n#include <stdlib.h>\n#include <string.h>\nextern int stub_launch(void);\n"
LOADED_BY_NAME = {
    "libcurand.so.10": ("curandStub",),
    "libcuda.so.1": (
        "cuTensorMapEncodeTiled",
        "cuProfilerStart",
        "cuProfilerStop",
        "cuGetErrorString",
        "cuGetErrorName",
    ),
}
NVIDIA_SMI = """#!/bin/sh
# Answers the queries campo-onnx asks, whatever their order: the stub device of tests/cuda.
for word in "$@"; do case "$word" in --query-gpu=*) fields=${word#--query-gpu=};; esac; done
answer=""
for field in $(echo "$fields" | tr ',' ' '); do
  case "$field" in
    name) value="${STUB_GPU_NAME:-STUB not a GPU}";;
    driver_version) value="0.0-stub";;
    compute_cap) value="9.0";;
    uuid) value="GPU-00000000-0000-0000-0000-000000000000";;
    memory.total) value="${STUB_GPU_MIB:-81559} MiB";;
    *) value="[N/A]";;
  esac
  answer="${answer:+$answer, }$value"
done
echo "$answer"
"""


def provider_library() -> Path:
    """The CUDA provider of the installed onnxruntime-gpu."""
    spec = find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        sys.exit("onnxruntime-gpu is not installed")
    library = Path(spec.origin).parent / "capi" / "libonnxruntime_providers_cuda.so"
    if not library.exists():
        sys.exit("the installed ONNX Runtime has no CUDA provider: install onnxruntime-gpu")
    return library


def wanted_symbols(library: Path) -> dict[str, list[str]]:
    """Undefined symbols of a library, by the library that is to define them."""
    answer = _run("nm", "-D", "--undefined-only", str(library))
    wanted: dict[str, list[str]] = defaultdict(list)
    for line in answer.splitlines():
        symbol, _, source = line.split()[-1].partition("@")
        if source.startswith("lib") and any(part in source for part in ("cublas", "cufft", "curand")):
            wanted[source].append(symbol)
    names = set(re.findall(r"^cudnn[A-Z][A-Za-z]+$", _run("strings", "-n", "6", str(library)), re.MULTILINE))
    wanted[CUDNN] = sorted(names | {"cudnnGetConvolutionNdForwardOutputDim", "cudnnGetCudartVersion"})
    for source, symbols in LOADED_BY_NAME.items():
        wanted.setdefault(source, list(symbols))
    return wanted


def source_of(symbols: Iterable[str]) -> str:
    """C code that defines symbols."""
    lines = []
    for symbol in symbols:
        rule = SPECIAL.get(symbol) or next(code for pattern, code in RULES if pattern.search(symbol))
        lines.append(rule.format(name=symbol))
    return PREAMBLE + "\n".join(lines) + "\n"


def build(out: Path, library: Path) -> None:
    """Compile everything into a folder."""
    headers = out / "headers"
    _run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(headers), *HEADERS)
    include = next(headers.rglob("cuda_runtime_api.h")).parent
    _compile(out, CUDART, HERE / "cudart.c", f"-I{include}", "-lpthread")
    for name, symbols in wanted_symbols(library).items():
        code = out / f"{name}.c"
        code.write_text(source_of(symbols))
        _compile(out, name, code, f"-L{out}", f"-l:{CUDART}", versioned=name not in (CUDNN, "libcuda.so.1"))
    program = out / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(NVIDIA_SMI)
    program.chmod(0o755)
    shutil.rmtree(headers)


def _compile(out: Path, name: str, code: Path, *flags: str, versioned: bool = True) -> None:
    if versioned:
        script = out / f"{name}.map"
        script.write_text(f"{name} {{ global: *; }};\n")
        flags = (f"-Wl,--version-script={script}", *flags)
    _run("cc", "-w", "-shared", "-fPIC", str(code), f"-Wl,-soname,{name}", *flags, "-o", str(out / name))


def _run(*words: str) -> str:
    answer = subprocess.run(words, capture_output=True, text=True, check=False)
    if answer.returncode:
        sys.exit(f"{words[0]} failed:\n{answer.stderr}")
    return answer.stdout


def built() -> Path:
    """The folder of the stubs, built where there is none that fits."""
    library = provider_library()
    digest = hashlib.sha256((HERE / "cudart.c").read_bytes() + Path(__file__).read_bytes())
    digest.update(f"{library} {library.stat().st_size}".encode())
    out = CACHE / digest.hexdigest()[:12]
    if not (out / "bin").exists():
        unfinished = out.with_suffix(".part")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        build(unfinished, library)
        unfinished.rename(out)
    return out


if __name__ == "__main__":
    print(built())
