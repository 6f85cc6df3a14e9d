#!/usr/bin/env python3
"""The largest files that each reader takes, of the form that costs it most: seconds and memory of the whole
call, and how it ends. What is answered or refused in time linear in the file stays below the limits.

    python3 tests/cli/large_files.py build/bin/foreshard [--seconds 10] [--mebibytes 2048] [--only NAME]
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

MIB = 1 << 20
JOB = ["--model", "gpt2", "--cluster", "8xh100"]
SMI = "GPU{}\t X \tNV18\n"


def filled(size, line, head="", tail=""):
    """`head`, as many of line(i) as fit, `tail`."""
    parts, used, i = [head], len(head) + len(tail), 0
    while True:
        text = line(i)
        used += len(text)
        if used > size:
            return "".join(parts) + tail
        parts.append(text)
        i += 1


def matrix(size):
    gpus = int((size / 2) ** 0.5)
    header = "\t" + "\t".join(f"GPU{i}" for i in range(gpus)) + "\n"
    row = "\tX" * gpus + "\n"
    return (header + "".join(f"GPU{i}{row}" for i in range(gpus)))[:size]


CONFIG = ('{"model_type": "llama", "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 2, '
          '"num_attention_heads": 8, "vocab_size": 1024, "max_position_embeddings": 2048')
EVENT = '{{"ph":"X","cat":"cpu_op","name":"aten::mm{0}","ts":{0}.5,"dur":1,"tid":1,"args":{{"External id":{0}}}}}'
NCCL = "gpu,network,collective,n_gpus,n_nodes,bytes,time_us_oop,source\n"

# name, file, arguments, content of a size, sizes in MiB
FILES = [
    ("plan: keys nobody knows", "p.yaml", ["predict", "--plan", "@"],
     lambda s: filled(s, lambda i: f"key{i}: 1\n"), 1.9),
    ("plan: one long list", "p.yaml", ["predict", "--plan", "@"],
     lambda s: filled(s, lambda i: "- 1\n", "mesh:\n"), 1.9),
    ("plan: units listed one by one", "p.yaml", ["predict", "--plan", "@"],
     lambda s: filled(s, lambda i: f"- {{units: {i}, value: always}}\n",
                      "model: gpt2\ncluster: 8xh100\nreshard_after_forward:\n"), 1.5),
    ("YAML: nested flow lists", "p.yaml", ["predict", "--plan", "@"], lambda s: "[" * s, 1.9),
    ("YAML: aliases", "p.yaml", ["predict", "--plan", "@"],
     lambda s: filled(s, lambda i: f"b{i}: *a\n", "a: &a [1, 2, 3, 4]\n"), 0.2),
    ("YAML: a long quoted text", "p.yaml", ["predict", "--plan", "@"], lambda s: 'a: "' + "x\\n" * (s // 3), 1.9),
    ("config.json: keys nobody knows", "c.json", ["models", "./@"],
     lambda s: filled(s, lambda i: f', "key_{i}": {i}', CONFIG, "}"), 15),
    ("config.json: one long list", "c.json", ["models", "./@"],
     lambda s: filled(s, lambda i: ", 1", CONFIG + ', "layer_types": [1', "]}"), 5),
    ("JSON: nested", "c.json", ["models", "./@"], lambda s: "[" * s, 15),
    ("model: many layers", "m.yaml", ["models", "./@"],
     lambda s: filled(s, lambda i: f"  layer{i}: {{}}\n", "name: m\nlayers:\n"), 1.5),
    ("cluster: degraded links", "c.yaml", ["predict", "--model", "gpt2", "--cluster", "./@"],
     lambda s: filled(s, lambda i: f"- {{node: {i % 2}, nic: {i % 8}, fraction: 0.5}}\n",
                      "gpus: 16\nmachine: h100-sxm\ndegraded:\n"), 0.8),
    ("DeepSpeed: keys nobody knows", "d.json", ["import", "@", *JOB],
     lambda s: filled(s, lambda i: f', "optimiser_key_{i}": {i}', '{"train_batch_size": 8', "}"), 4),
    ("TorchTitan: keys nobody knows", "t.toml", ["import", "@", *JOB],
     lambda s: filled(s, lambda i: f"k{i} = 1\n", "[training]\n"), 1),
    ("safetensors: an index of many files", "m.safetensors.index.json", ["import", "@", *JOB],
     lambda s: filled(s, lambda i: f', "t{i}": "f{i}"', '{"weight_map": {"a": "f"', "}}"), 8),
    ("safetensors: many tensors", "m.safetensors", ["import", "@", *JOB],
     lambda s: (lambda h: len(h).to_bytes(8, "little") + h)(
         filled(s, lambda i: f',"t{i}":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', '{"a":{"dtype":"F32",'
                '"shape":[1],"data_offsets":[0,4]}', "}").encode()), 8),
    ("table: cells", "t.csv", ["accuracy", "@"],
     lambda s: filled(s, lambda i: "," * 9 + "\n", ",".join(f"c{i}" for i in range(10)) + "\n"), 4),
    ("table: columns", "t.csv", ["accuracy", "@"], lambda s: "," * s, 30),
    ("table of products", "t.csv", ["calibrate", "@", "--out", "o.json"],
     lambda s: filled(s, lambda i: f"H100,{i + 1},x,64,bf16,1\n", "gpu,m,n,k,dtype,tflops\n"), 4),
    ("table of nccl-tests", "t.csv", ["accuracy", "@"],
     lambda s: filled(s, lambda i: f"H100,NVLink,all_gather,8,1,{1024 + i},9.5,s{i}\n", NCCL), 2),
    ("table of steps", "t.csv", ["accuracy", "@"],
     lambda s: filled(s, lambda i: "x,1,1,8,0\n", "id,n_layers,seq_len,n_gpus,step_time_s\n"), 2),
    ("log of nccl-tests: rows", "all_gather.log", ["calibrate", "@", "--machine", "h100", "--out", "o.json"],
     lambda s: filled(s, lambda i: f"{8 * i + 8} 2 float none -1 {(8 * i + 8) / 1e4:.4f} 10.0 8.75 0\n"), 4),
    ("log of nccl-tests: other lines", "all_gather.log",
     ["calibrate", "@", "--machine", "h100", "--out", "o.json"],
     lambda s: filled(s, lambda i: "[1,0]<stdout>: node-1: x\n", "# nThread 1\n"), 15),
    ("log of nccl-tests: one line", "all_gather.log", ["calibrate", "@", "--machine", "h100", "--out", "o.json"],
     lambda s: "# nThread " + "rank 0 " * (s // 7), 15),
    ("nvidia-smi: a matrix", "t.txt", ["import", "@", "--machine", "h100"], matrix, 1.9),
    ("NCCL topology: elements", "t.xml", ["import", "@", "--machine", "h100"],
     lambda s: filled(s, lambda i: "<gpu/>\n", "<system>\n"), 1.9),
    ("NCCL topology: nested", "t.xml", ["import", "@", "--machine", "h100"],
     lambda s: "<system>" + "<a>" * (s // 3 - 9), 1.9),
    ("Slurm: ranges", "t.conf", ["import", "@", "--machine", "h100"],
     lambda s: filled(s, lambda i: "n[0-99999],", "SwitchName=s Nodes="), 1.9),
    ("answer: nested", "a.json", ["report", "@", "--html", "o.html"], lambda s: "[" * s, 60),
    ("answer: values", "a.json", ["report", "@", "--html", "o.html"],
     lambda s: filled(s, lambda i: ",1", '{"schema":"foreshard.accuracy/1","rows":[1', "]}"), 20),
    ("search state", "s.txt", ["search", *JOB, "--global-batch", "8", "--resume", "@"],
     lambda s: filled(s, lambda i: f"{i} 0 1 2 3\n", "foreshard.search_state/2 0\n"), 60),
    ("trace: events", "t.json", ["explain", "--run", "@"],
     lambda s: filled(s, lambda i: ("," if i else "") + EVENT.format(i), '{"traceEvents":[', "]}"), 60),
    ("trace: events inside each other", "t.json", ["explain", "--run", "@"],
     lambda s: filled(s, lambda i: ("," if i else "") + EVENT.format(i).replace('"dur":1,', '"dur":900000,'),
                      '{"traceEvents":[', "]}"), 20),
]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--seconds", type=float, default=10, help="of a call, at most")
    parser.add_argument("--mebibytes", type=float, default=2048)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    program = str(pathlib.Path(options.program).resolve())
    bad = 0
    for name, file, arguments, make, mebibytes in FILES:
        if options.only not in name:
            continue
        content = make(int(mebibytes * MIB))
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / file
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
            size = path.stat().st_size
            start = time.monotonic()
            with open(pathlib.Path(folder) / "err", "wb") as err:
                child = subprocess.Popen([program] + [a.replace("@", file) for a in arguments], cwd=folder,
                                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=err)
                timer = threading.Timer(6 * options.seconds, child.kill)
                timer.start()
                _, status, usage = os.wait4(child.pid, 0)
                timer.cancel()
            seconds = usage.ru_utime + usage.ru_stime  # of a machine that is busy, too
            memory = usage.ru_maxrss / 1024
            code = os.waitstatus_to_exitcode(status)
            error = (pathlib.Path(folder) / "err").read_text(errors="replace").strip().split("\n")[0][:90]
            wrong = seconds > options.seconds or memory > options.mebibytes or code not in (0, 2, 3, 4, 5, 6)
            bad += wrong
            print(f"{'BAD ' if wrong else ''}{name}: {size / MIB:.1f} MiB, {seconds:.2f} s, {memory:.0f} MiB, exit "
                  f"{code} ({time.monotonic() - start:.1f} s) {error}", flush=True)
    print(f"{bad} beyond {options.seconds} s or {options.mebibytes} MiB, or ended otherwise than by an answer or "
          "a refusal")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
