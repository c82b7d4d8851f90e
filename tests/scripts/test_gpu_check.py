#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu-check and gpu-bundle without a GPU: programs, nvidia-smi and compute-sanitizer are stand-ins."""
import csv
import json
import os
import pathlib
import re
import shutil
import subprocess
import tarfile
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECTIONS = ["tests", "startup", "first", "decode", "prefill", "offline", "serve", "drafts", "quant_decode",
            "quant_prefill", "quant_serve", "attn", "sanitize"]
PROGRAMS = "cuda_engine\ncuda_gemm\tmemcheck --quick\tracecheck --quick --own\ncuda_moe\tmemcheck --quick\n"
# Rows of every `minisgl bench` command at once: a section reads the fields that it knows.
ATTN = "\n".join('{"backend":"%s","phase":"%s","shape":"%s","page_size":%d,"layer_ms":%g,"graph_ms":%g,"gb_per_s":1700,'
                 '"graph_gb_per_s":0,"tflop_per_s":1,"graph_tflop_per_s":0}' % row for row in (
                     ("fa", "decode", "1x8192 32/8", 16, 0.1, 0), ("fa", "decode", "64x8192 32/8", 16, 1.9, 1.8),
                     ("fa", "decode", "64x8192 32/8 fp8", 16, 9, 1), ("fi", "decode", "64x8192 32/8 fp8", 16, 9, 1),
                     ("delta", "prefill", "1x4096", 0, 0.29, 0), ("delta", "decode", "1", 0, 0.01, 0.0025)))
ROW = ('{"median_s":0.5,"max_s":1,"ms":1,"batch":8,"ms_per_step":MS,"best_tok_per_s":7,"tok_per_s":6,'
       '"output_tok_per_s":5,"clients":8,"ttft_p50_ms":100,"ttft_p99_ms":300,"gap_p50_ms":7,"gap_p99_ms":8,'
       '"gap_max_ms":9,"client_core_pct":2,"gb_per_s":3570,"experts_hit":64,"set_acceptance":0.7,"speedup":2.5,"step_ratio":1.1}')
MINISGL = f"""#!/bin/sh
case "$*" in
"bench serve"*-fp8*) echo '{ROW}' | sed 's/"output_tok_per_s":5/"output_tok_per_s":8/' ;;
"bench serve"*--open-ended*) echo '{ROW}' | sed 's/"clients":8/"clients":64/; s/"output_tok_per_s":5/"output_tok_per_s":4/' ;;
"bench serve"*) echo '{ROW}'; echo '{ROW}' | sed 's/"clients":8/"clients":64/' ;;
"bench attn"*delta*) echo '{ATTN}' ;;
"bench prefill"*v2-lite*--routing\ collapsed*) echo '{ROW}' | sed 's/"ms":1/"ms":2.4/; s/"experts_hit":64/"experts_hit":6/' ;;
"bench decode"*-awq*) echo '{ROW}' | sed 's/"ms_per_step":MS/"ms_per_step":0.24/' ;;
"bench decode"*-fp8-*) echo '{ROW}'; echo '{ROW}' | sed 's/"batch":8/"batch":9/' ;;
"bench prefill"*-q6-k*) echo '{ROW}' | sed 's/"tok_per_s":6/"tok_per_s":3/' ;;
bench*) echo '{ROW}' ;;
*) echo "the same answer" ;;
esac
"""
# Of the folder that the section startup writes.
SHAPE = {"hidden_size": 64, "intermediate_size": 64, "head_dim": 32, "num_attention_heads": 2, "num_key_value_heads": 2,
         "num_hidden_layers": 1, "vocab_size": 8, "tie_word_embeddings": False,
         "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}}


class GpuCheck(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.dir = pathlib.Path(scratch.name)
        self.tools = self.dir / "tools"
        self.csv = self.dir / "results.csv"
        self.script(self.tools / "nvidia-smi", "#!/bin/sh\necho 'NVIDIA Test, 1.0, 1 MiB'\n")
        self.shape = self.dir / "shape"
        for name, text in (("config.json", json.dumps(SHAPE)), ("tokenizer.json", "{}"), ("tokenizer_config.json", "{}")):
            self.script(self.shape / name, text)
        self.script(self.tools / "compute-sanitizer", f"#!/bin/sh\necho \"$@\" >>{self.dir}/sanitized\n")

    def script(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def bundle(self, commit, ms=0.6, broken=None):
        tree = self.dir / f"bundle-{commit}-{ms}-{broken is not None}"
        self.script(tree / "bin" / "minisgl", MINISGL.replace("MS", str(ms)))
        for name in ("cuda_engine", "cuda_gemm", "cuda_moe"):
            self.script(tree / "bin" / name, broken if broken and name == "cuda_gemm" else "#!/bin/sh\necho ok\n")
        (tree / "bin" / "gpu-programs").write_text(PROGRAMS)
        (tree / "lib").mkdir(exist_ok=True)
        (tree / "commit").write_text(commit + "\n")
        with tarfile.open(f"{tree}.tar", "w") as archive:
            archive.add(tree, ".")
        return f"{tree}.tar"

    def call(self, *args, code=0, name="gpu-check", env=None):
        run = subprocess.run([ROOT / "scripts" / name, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             env=dict(os.environ, PATH=f"{self.tools}:{os.environ['PATH']}",
                                      GPU_CHECK_PACKED_SHAPE=str(self.shape), **(env or {})))
        self.assertEqual(run.returncode, code, run.stdout)
        return run.stdout

    def check(self, bundle, *sections, to=None, code=0, more=()):
        return self.call("--bundle", bundle, "--csv", to or self.csv, *more, *sections, code=code)

    def rows(self):
        with open(self.csv, newline="") as f:
            return list(csv.DictReader(f))

    def status(self, *commit, code):
        return self.call("status", *commit, "--csv", self.csv, code=code)

    def test_all_sections_are_green(self):
        out = self.check(self.bundle("aaaaaaa11"))
        self.assertIn("| decode step | 0.6B bs=8 | 0.6 | ms | 0.75 | 1.57 | yes |", out)
        self.assertIn("| decode step | 30B-A3B bs=8 | 0.6 | ms | 7 | 9.29 | yes |", out)
        self.assertIn("| decode step, share of 4.2 TB/s | V2-Lite bs=8 | 0.85 |", out)
        self.assertIn("| experts a layer | V2-Lite bs=8 | 64 | experts |", out)
        self.assertIn("| serve | 14B 8 clients, first token p50 | 100 | ms | 110 | 174 | yes |", out)
        self.assertIn("| serve | 14B 8 clients, first token p99 | 300 | ms | 220 | 213 | NO |", out)
        self.assertIn("| serve | 14B 64 clients without max_tokens, share of the tok/s with it | 80 | % | 90 |  | NO |", out)
        self.assertIn("| first token | V2-Lite 1x128, collapsed | 2.4 | ms | 2.5 | 7.7 | yes |", out)
        self.assertIn("| experts a layer | V2-Lite 1x128, collapsed | 6 | experts |", out)
        self.assertIn("| linear attention | delta prefill 1x4096 | 290 | us | 300 | 614 | yes |", out)
        self.assertIn("| linear attention | delta decode 1 | 2.5 | us | 1.9 | 1.9 | NO |", out)
        self.assertIn("| FP8 cache, times bf16's speed | fa 64x8192 32/8 page=16 | 1.8 | x | 1.7 |  | yes |", out)
        self.assertIn("| quant decode, ms_per_step | 14B bf16 bs=8 | 0.6 | ms |", out)
        self.assertIn("| quant decode | 14B int4 bs=8 | 2.5 | x | 2.4 |  | yes |", out)
        self.assertIn("| quant decode | 14B fp8 blocks bs=8 | 1 | x | 1.6 |  | NO |", out)
        self.assertNotIn("| quant decode | 14B fp8 blocks bs=9 |", out)  # without a row of bf16 beside it
        self.assertNotIn("| share |", out)  # of a card whose memory's speed is not known
        self.assertIn("| quant prefill | 8B Q6_K 1x2048 | 0.5 | x | 0.9 |  | NO |", out)
        self.assertIn("| quant serve | 14B fp8 8 clients | 1.6 | x | 1.45 |  | yes |", out)
        self.assertNotIn("speed | fi", out)  # without a row of bf16 beside it
        self.assertNotIn("best of fa, fi 64x8192 32/8 fp8", out)
        out = self.status(code=0)
        for section in SECTIONS:
            self.assertRegex(out, rf"{section} +20.*green")
        self.assertIn("offline, 14B: 5", out)  # a figure missed is named, and no failure

    def test_shares_of_a_known_memory(self):
        self.script(self.tools / "nvidia-smi", "#!/bin/sh\necho 'NVIDIA H200, 1.0, 1 MiB'\n")
        out = self.check(self.bundle("aaaaaaa11"), "quant_decode")
        self.assertIn("| quant decode | gpt-oss-20b mxfp4 bs=8 | 0.8302 | share |", out)

    def test_two_gpus_against_one(self):
        tree = self.dir / "two"
        self.script(tree / "minisgl", f"""#!/bin/sh
case "$*" in
run*"--nnodes 2"*) echo "$TWO_HOSTS" ;;
run*"--cache-type radix"*"--tp-size 2"*) for i in 1 2 3; do echo '{{"token_ids":['$CACHED'],"cached_tokens":16}}'; done ;;
run*"--cache-type radix"*) for i in 1 2 3; do echo '{{"token_ids":[5],"cached_tokens":16}}'; done ;;
run*"--cache-type naive"*) for i in 1 2 3; do echo '{{"token_ids":[5],"cached_tokens":0}}'; done ;;
run*) echo "the same answer" ;;
"bench step"*"--tp-size 2"*) echo '{ROW}' | sed 's/MS,/2,"phase":"mixed",/' ;;
"bench step"*) echo '{ROW}' | sed 's/MS,/3,"phase":"mixed",/' ;;
*"--tp-size 2"*) echo '{ROW}' | sed 's/MS/0.5/; s/"tok_per_s":6/"tok_per_s":9/' ;;
*) echo '{ROW}' | sed 's/MS/0.8/' ;;
esac
""")
        self.script(tree / "cuda_ranks", """#!/bin/sh
case "$*" in
*communicator*) exit "${SUMS_WRONG:-0}" ;;
*--bench*) echo "ranks: peer memory: all_reduce of 10240 bytes on 2 ranks: 5.5 us, 1.9 GB/s" ;;
esac
""")
        self.script(tree / "cuda_stored_models", "#!/bin/sh\n[ \"$1 $2 $3\" = '--device cuda:0,1 --part' ]\n")
        ranks = ["--build", tree, "--csv", self.csv, "ranks", "ranks_speed"]
        out = self.call(*ranks, code=1, env={"TWO_HOSTS": "another", "CACHED": "6"})
        self.assertIn("two hosts: one GPU says the same answer, two hosts say another", out)
        self.assertIn("prefix cache: the texts differ: {'radix cache, 1 GPU': [[5], [5], [5]], "
                      "'radix cache, 2 GPU': [[6], [6], [6]]", out)
        out = self.call(*ranks, env={"TWO_HOSTS": "the same answer", "CACHED": "5"})
        self.assertIn("| all_reduce in a graph | 10240 bytes on 2 ranks, peer memory | 5.5 | us | 6 |  | yes |", out)
        self.assertIn("| decode step | 14B bs=8, 2 GPUs | 0.5 | ms |", out)
        self.assertIn("| times one GPU's speed | decode step, 14B bs=8, 2 GPUs | 1.6 | x |", out)
        self.assertIn("| times one GPU's speed | decode step, 14B int4 bs=8, 2 GPUs | 1.6 | x |", out)
        self.assertIn("| times one GPU's speed | prefill, 14B 16x1024 bs=8, 2 GPUs | 1.5 | x |", out)
        self.assertIn("| times one GPU's speed | decode step, 30B-A3B bs=8, 2 GPUs, whole experts | 1.6 | x |", out)
        out = self.call(*ranks, code=1, env={"SUMS_WRONG": "1"})
        self.assertNotIn("--bench", out)
        self.assertRegex(self.status(code=1), "tests +not run")  # it is of no section that a single GPU has

    def test_sections_alone_add_up(self):
        bundle = self.bundle("aaaaaaa11")
        for i, section in enumerate(SECTIONS):
            self.check(bundle, section, to=self.dir / f"part{i}.csv")
            self.call("merge", self.dir / f"part{i}.csv", "--csv", self.csv)
            out = self.status(code=0 if section == SECTIONS[-1] else 1)
            self.assertEqual(out.count("not run"), len(SECTIONS) - 1 - i)

    def test_sections_of_two_commits_are_not_green(self):
        self.check(self.bundle("aaaaaaa11"), *SECTIONS[:4])
        self.check(self.bundle("bbbbbbb22"), *SECTIONS[4:])
        self.assertIn("not green", self.status("aaaaaaa11", code=1))
        self.assertIn("not green", self.status("bbbbbbb22", code=1))
        self.assertIn("no machine", self.status("ccccccc33", code=1))

    def test_two_kinds_of_machines_are_not_green_together(self):
        bundle = self.bundle("aaaaaaa11")
        self.check(bundle, *SECTIONS[:4])
        self.script(self.tools / "nvidia-smi", "#!/bin/sh\necho 'NVIDIA Other, 1.0, 1 MiB'\n")
        self.check(bundle, *SECTIONS[4:])
        self.assertEqual(self.status(code=1).count("not green"), 2)

    def test_a_changed_tree_is_not_green(self):
        self.check(self.bundle("aaaaaaa11+"))
        self.assertIn("nobody can say", self.status("aaaaaaa11+", code=1))
        self.status("aaaaaaa11", code=1)

    def test_a_failure_is_red_until_the_section_runs_again(self):
        bad = self.bundle("aaaaaaa11", broken="#!/bin/sh\necho no; exit 3\n")
        out = self.check(bad, code=1)
        self.assertIn("FAILED: cuda_gemm: exit code 3", out)
        self.assertRegex(self.status(code=1), r"tests .*red: cuda_gemm\n")
        before = {(r["figure"], r["variant"]) for r in self.rows()}
        self.check(self.bundle("aaaaaaa11"), "tests")
        self.status(code=0)
        self.assertEqual({(r["figure"], r["variant"]) for r in self.rows()}, before)

    def test_a_command_that_ran_out_of_time_is_red(self):
        slow = self.bundle("aaaaaaa11", broken="#!/bin/sh\nsleep 30\n")
        out = self.check(slow, "tests", code=1, more=("--limit", "3"))
        self.assertIn("did not end within", out)
        self.assertIn("not reached", self.check(slow, "tests", code=1, more=("--limit", "1")))

    def test_a_bench_without_rows_is_red(self):
        tree = self.dir / "none"
        for name in ("minisgl", "cuda_engine"):
            self.script(tree / name, "#!/bin/sh\n")
        (tree / "gpu-programs").write_text("cuda_engine\n")
        out = self.call("--build", tree, "--csv", self.csv, "first", code=1)
        self.assertIn("printed no row", out)
        os.remove(tree / "cuda_engine")
        self.assertIn("FAILED: cuda_engine", self.call("--build", tree, "--csv", self.csv, "tests", code=1))
        os.remove(tree / "gpu-programs")
        self.assertIn("gpu-programs", self.call("--build", tree, "--csv", self.csv, "sanitize", code=1))

    def test_tools_of_the_sanitizer_are_those_listed(self):
        self.check(self.bundle("aaaaaaa11"), "sanitize")
        runs = sorted(re.sub(r"/\S*/", "", line) for line in (self.dir / "sanitized").read_text().splitlines())
        self.assertEqual(runs, ["--tool memcheck --error-exitcode 9 cuda_gemm --quick",
                                "--tool memcheck --error-exitcode 9 cuda_moe --quick",
                                "--tool racecheck --error-exitcode 9 cuda_gemm --quick --own"])

    def test_the_later_run_of_a_section_counts(self):
        old, new = self.dir / "old.csv", self.dir / "new.csv"
        row = "NVIDIA Test,aaaaaaa11,{date},decode,decode step,0.6B bs=8,{ms},ms,\n"
        head = "machine,commit,date,section,figure,variant,value,unit,state\n"
        old.write_text(head + row.format(date="2026-01-01T00:00:00Z", ms=9) +
                       row.format(date="2026-01-01T00:00:00Z", ms=8).replace("bs=8", "bs=9"))
        new.write_text(head + row.format(date="2026-01-01T01:00:00Z", ms=0.5))
        for order in ((old, new), (new, old)):
            self.csv.unlink(missing_ok=True)
            self.call("merge", *order, "--csv", self.csv)
            self.assertEqual([r["value"] for r in self.rows()], ["0.5"])

    def test_commits_beside_each_other(self):
        self.check(self.bundle("aaaaaaa11", ms=0.9), "decode")
        self.check(self.bundle("bbbbbbb22", ms=0.6), "decode")
        out = self.call("table", "aaaaaaa", "bbbbbbb2233", "--csv", self.csv)
        self.assertIn("| decode step | 0.6B bs=8 | 0.9 | 0.6 | ms | 0.75 | 1.57 | yes |", out)

    def test_wrong_words(self):
        self.assertIn("there are tests, startup", self.call("nonsense", code=1))
        self.csv.write_text("figure,value\n")
        self.assertIn("the first line is", self.call("status", "--csv", self.csv, code=1))

    @unittest.skipUnless(shutil.which("xz"), "xz is not installed")
    def test_bundle(self):
        build, out = self.dir / "build", self.dir / "out.tar.xz"
        for name in ("minisgl", "minisgl-cuda.so", "cuda_engine", "cuda_other"):
            self.script(build / name, "")
            (build / name).write_bytes(pathlib.Path("/bin/true").read_bytes())
        (build / "CMakeCache.txt").write_text("MSGL_CUDA_ARCHS:STRING=80 90a\n")
        self.assertIn("no minisgl-cuda.so", self.call(build, out, name="gpu-bundle", code=1))
        (build / "gpu-programs").write_text("cuda_engine\n")
        self.assertIn("has kernels for 80 90a", self.call(build, out, name="gpu-bundle", code=1))
        (build / "CMakeCache.txt").write_text("MSGL_CUDA_ARCHS:STRING=90a\nMSGL_CUDA_QUICK:BOOL=ON\n")
        self.assertIn("run slowly", self.call(build, out, name="gpu-bundle", code=1))
        (build / "CMakeCache.txt").write_text("MSGL_CUDA_ARCHS:STRING=90a\nMSGL_CUDA_QUICK:BOOL=OFF\n")
        told = self.call(build, out, name="gpu-bundle", code=1, env={"GPU_BUNDLE_LIMIT": "1000"})
        self.assertIn("allowed are 1000", told)
        self.assertIn("./bin/minisgl-cuda.so", told)
        self.assertFalse(out.exists())
        self.assertIn("of 60000000", self.call(build, out, name="gpu-bundle"))
        with tarfile.open(out) as archive:
            names = archive.getnames()
        for name in ("./commit", "./bin/minisgl", "./bin/cuda_engine", "./bin/gpu-programs"):
            self.assertIn(name, names)
        self.assertNotIn("./bin/cuda_other", names)  # not in the list, so nothing would run it


if __name__ == "__main__":
    unittest.main()
