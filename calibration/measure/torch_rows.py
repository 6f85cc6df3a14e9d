#!/usr/bin/env python3
"""Times PyTorch's own kernels on this GPU, one after the other on a stream as a training step runs them.

    python3 torch_rows.py --out DIR

Writes DIR/membound_measured.csv, attention_measured.csv and gemm_measured.csv in the columns of calibration/published/
(calibration/README.md). Buffers rotate through more than the L2 cache holds; a row is the median of seven batches of
calls, batches of about 20 ms. bytes_counted is what the kernels of that operation read and write, each kernel by
itself, as the event graph counts it.
"""
import argparse
import csv
import pathlib
import statistics

import torch
import torch.nn.functional as F

SOURCE = "foreshard:calibration/measure/torch_rows.py"
BF16, FP32 = torch.bfloat16, torch.float32
BEYOND_CACHE = 256 << 20  # bytes of inputs that a rotation goes through
SIZES = [(8192, 2048), (8192, 8192), (4096, 14336)]


def randn(*shape, dtype=BF16):
    return torch.randn(*shape, dtype=dtype, device="cuda")


def seconds(call, inputs):
    """Of one call on the next of `inputs`; a call frees what it makes."""
    for x in inputs[:2]:
        call(x)
    torch.cuda.synchronize()

    def batch(count):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for i in range(count):
            call(inputs[i % len(inputs)])
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1e3 / count

    once = batch(3)
    count = max(3, min(400, int(0.012 / max(once, 1e-6))))
    return statistics.median(batch(count) for _ in range(7))


class Rows:
    def __init__(self):
        self.memory, self.attention, self.gemm = [], [], []
        self.gpu = {"NVIDIA H100 80GB HBM3": "H100 SXM", "NVIDIA H200": "H200"}.get(torch.cuda.get_device_name(), torch.cuda.get_device_name())
        self.source = f"{SOURCE} (torch {torch.__version__})"

    def add(self, op, shape, dtype, bytes_counted, call, make):
        """make() gives one set of inputs."""
        try:
            first = make()
            size = sum(t.numel() * t.element_size() for t in flat(first))
            inputs = [first] + [make() for _ in range(min(15, BEYOND_CACHE // max(size, 1)))]
            time = seconds(call, inputs)
        except Exception as error:  # one operation less
            print(f"{op} {shape}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            return
        finally:
            inputs = first = None
            torch.cuda.empty_cache()
        self.memory.append(dict(source=self.source, gpu=self.gpu, op=op, shape=shape, dtype=dtype, latency_us=f"{time * 1e6:.3f}",
                                bytes_counted=int(bytes_counted), gbs=round(bytes_counted / time / 1e9)))

    def write(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in (("membound", self.memory), ("attention", self.attention), ("gemm", self.gemm)):
            if rows:
                with open(folder / f"{name}_measured.csv", "w", newline="", encoding="utf-8") as file:
                    writer = csv.DictWriter(file, list(rows[0]))
                    writer.writeheader()
                    writer.writerows(rows)


def flat(x):
    return [x] if torch.is_tensor(x) else [t for part in x for t in flat(part)]


def leaf(t):
    return t.requires_grad_(True)


def elementwise(rows):
    for shape in SIZES:
        n, text = shape[0] * shape[1], f"{shape[0]} x {shape[1]}"
        pair = lambda: (randn(*shape), randn(*shape))  # noqa: E731
        rows.add("add (torch)", text, "bf16", 6 * n, lambda x: x[0] + x[1], pair)
        rows.add("multiply (torch)", text, "bf16", 6 * n, lambda x: x[0] * x[1], pair)
        rows.add("silu forward (torch)", text, "bf16", 4 * n, lambda x: F.silu(x[0]), pair)
        rows.add("silu backward (torch)", text, "bf16", 6 * n, lambda x: torch.ops.aten.silu_backward(x[0], x[1]), pair)
        rows.add("gelu forward (torch)", text, "bf16", 4 * n, lambda x: F.gelu(x[0]), pair)
        rows.add("gelu backward (torch)", text, "bf16", 6 * n, lambda x: torch.ops.aten.gelu_backward(x[0], x[1]), pair)
        rows.add("tanh (torch)", text, "bf16", 4 * n, lambda x: x[0].tanh(), pair)
        rows.add("cast bf16 to fp32 (torch)", text, "bf16", 6 * n, lambda x: x[0].float(), pair)
        rows.add("cast fp32 to bf16 (torch)", text, "fp32", 6 * n, lambda x: x.to(BF16), lambda: randn(*shape, dtype=FP32))
        rows.add("multiply fp32 (torch)", text, "fp32", 12 * n, lambda x: x[0] * x[1],
                 lambda: (randn(*shape, dtype=FP32), randn(*shape, dtype=FP32)))
        rows.add("dropout forward (torch)", text, "bf16", 5 * n, lambda x: torch.ops.aten.native_dropout(x[0], 0.1, True), pair)
        rows.add("transpose copy (torch)", text, "bf16", 4 * n, lambda x: x.transpose(1, 2).contiguous(),
                 lambda: randn(4, shape[0] // 4, shape[1] // 128, 128))
        rows.add("rotate half (torch)", text, "bf16", 4 * n + 2 * n, lambda x: torch.cat((-x[..., 64:], x[..., :64]), -1),
                 lambda: randn(4, shape[1] // 128, shape[0] // 4, 128))
        rows.add("multiply broadcast strided (torch)", text, "bf16", 4 * n, lambda x: x[0].transpose(1, 2) * x[1],
                 lambda: (randn(4, shape[0] // 4, shape[1] // 128, 128), randn(1, 1, shape[0] // 4, 128)))
        rows.add("column sum (torch)", text, "bf16", 2 * n, lambda x: x[0].sum(0), pair)
        rows.add("fill (torch)", text, "bf16", 2 * n, lambda x: x[0].zero_(), pair)


def norms(rows):
    for tokens, width in ((8192, 2048), (8192, 4096), (16384, 4096), (4096, 8192)):
        n, text = tokens * width, f"{tokens} x {width}"
        weight, bias = randn(width), randn(width)
        make = lambda: (randn(tokens, width), randn(tokens, width))  # noqa: E731
        rows.add("RMSNorm forward (torch)", text, "bf16", 4 * n, lambda x: F.rms_norm(x[0], (width,), weight, 1e-5), make)
        rows.add("LayerNorm forward (torch)", text, "bf16", 4 * n, lambda x: F.layer_norm(x[0], (width,), weight, bias), make)

        def with_grad(function):
            def build():
                x, g = make()
                y = function(leaf(x))
                return x, g, y

            def call(z):
                torch.autograd.grad(z[2], [z[0], weight_leaf], z[1], retain_graph=True)
            return call, build

        weight_leaf = leaf(randn(width))
        call, build = with_grad(lambda x: F.rms_norm(x, (width,), weight_leaf, 1e-5))
        rows.add("RMSNorm backward alone (torch)", text, "bf16", 6 * n, call, build)
        call, build = with_grad(lambda x: F.layer_norm(x, (width,), weight_leaf, bias))
        rows.add("LayerNorm backward alone (torch)", text, "bf16", 6 * n, call, build)

        def eager(x):
            h = x.to(FP32)
            h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
            return weight_leaf * h.to(BF16)
        rows.add("RMSNorm forward (huggingface)", text, "bf16", 4 * n, lambda x: eager(x[0].detach()), make)
        call, build = with_grad(eager)
        rows.add("RMSNorm backward (huggingface)", text, "bf16", 6 * n, call, build)


def losses(rows):
    for tokens, vocabulary in ((4096, 32000), (8192, 32000), (4096, 128256), (8192, 128256), (4096, 151936)):
        n, text = tokens * vocabulary, f"{tokens} tokens x V={vocabulary}"
        labels = torch.randint(vocabulary, (tokens,), device="cuda")
        rows.add("log_softmax forward fp32 (torch)", text, "fp32", 8 * n, lambda x: F.log_softmax(x, -1), lambda: randn(tokens, vocabulary, dtype=FP32))
        rows.add("softmax bf16 (torch)", text, "bf16", 4 * n, lambda x: F.softmax(x, -1), lambda: randn(tokens, vocabulary))

        def both(z):
            loss = F.cross_entropy(z.float(), labels)
            torch.autograd.grad(loss, z)
        rows.add("cross entropy fwd+bwd of bf16 logits (torch)", text, "bf16", 44 * n, both, lambda: leaf(randn(tokens, vocabulary)))

        def fp32(z):
            torch.autograd.grad(F.cross_entropy(z, labels), z)
        rows.add("cross entropy fwd+bwd (huggingface)", text, "fp32", 12 * n, fp32, lambda: leaf(randn(tokens, vocabulary, dtype=FP32)))


def optimizers(rows):
    """Over the tensors of a few blocks of an 8B model, whole and as one of 64 ranks holds them."""
    whole = [(4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096), (14336, 4096), (14336, 4096), (4096, 14336), (4096,), (4096,)]
    for label, shards in (("8B blocks", 1), ("8B blocks, a 64th", 64)):
        shapes = [(max(1, s[0] // shards), *s[1:]) for s in whole] * (3 if shards == 1 else 32)
        n = sum(torch.Size(s).numel() for s in shapes)

        def make():
            return [leaf(randn(*s, dtype=FP32)) for s in shapes]

        for fused in (True, False):
            parameters = make()
            for p in parameters:
                p.grad = torch.randn_like(p)
            optimizer = torch.optim.AdamW(parameters, lr=1e-6, fused=fused, foreach=not fused)
            optimizer.step()
            rows.add(f"AdamW ({'fused' if fused else 'foreach'})", f"{label}, {n}", "fp32", (28 if fused else 80) * n,
                     lambda _: optimizer.step(), lambda: parameters[0].detach())
        gradients = [p.grad for p in parameters]
        rows.add("foreach norm (torch)", f"{label}, {n}", "fp32", 4 * n, lambda _: torch._foreach_norm(gradients), lambda: gradients[0])
        rows.add("foreach multiply (torch)", f"{label}, {n}", "fp32", 8 * n, lambda _: torch._foreach_mul_(gradients, 1.0), lambda: gradients[0])
        rows.add("clip_grad_norm_ (torch)", f"{label}, {n}", "fp32", 12 * n,
                 lambda _: torch.nn.utils.clip_grad_norm_(parameters, 1.0), lambda: gradients[0])
        for p in parameters:
            p.grad = None


def fsdp_copies(rows):
    """FSDP2's copies of one block of an 8B model."""
    shapes = [(4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096), (14336, 4096), (14336, 4096), (4096, 14336)]
    n = sum(a * b for a, b in shapes)
    for world in (8, 64):
        def gathered():
            return randn(world, n // world), [torch.empty(world, a * b // world, dtype=BF16, device="cuda") for a, b in shapes]

        def copy_out(x):
            whole, out = x
            torch.ops.fsdp.split_with_sizes_copy(whole, [a * b // world for a, b in shapes], 1, out=out)
        rows.add("all_gather copy-out (fsdp)", f"8B block, {world} ranks", "bf16", 4 * n, copy_out, gathered)

        def gradients():
            return [randn(a, b) for a, b in shapes], torch.empty(world, n // world, dtype=FP32, device="cuda")
        rows.add("reduce_scatter copy-in (fsdp)", f"8B block, {world} ranks", "bf16", 6 * n,
                 lambda x: torch.ops.fsdp.chunk_cat(x[0], 0, world, out=x[1]), gradients)


def indexed(rows):
    for tokens, width, vocabulary in ((8192, 2048, 32000), (8192, 4096, 128256)):
        n, text = tokens * width, f"{tokens} x {width}, V={vocabulary}"
        table = randn(vocabulary, width)
        ids = lambda: torch.randint(vocabulary, (tokens,), device="cuda")  # noqa: E731
        rows.add("embedding forward (torch)", text, "bf16", 4 * n, lambda i: F.embedding(i, table), ids)
        rows.add("embedding backward (torch)", text, "bf16", 4 * n + 2 * vocabulary * width,
                 lambda x: torch.ops.aten.embedding_dense_backward(x[0], x[1], vocabulary, -1, False), lambda: (randn(tokens, width), ids()))
        rows.add("gather rows (torch)", text, "bf16", 4 * n, lambda x: x[0][x[1]], lambda: (randn(tokens, width), torch.randperm(tokens, device="cuda")))
        rows.add("index_add (torch)", text, "bf16", 6 * n, lambda x: x[0].index_add_(0, x[1], x[2]),
                 lambda: (randn(tokens, width), torch.randperm(tokens, device="cuda"), randn(tokens, width)))
    rows.add("topk 8 of 128 (torch)", "16384 x 128", "fp32", 4 * 16384 * 128, lambda x: x.topk(8, -1), lambda: randn(16384, 128, dtype=FP32))
    rows.add("sort (torch)", "131072", "int64", 16 * 131072, lambda x: x.argsort(), lambda: torch.randint(128, (131072,), device="cuda"))


def attention(rows):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    backends = {"FlashAttention-2": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION, "sdpa_efficient": SDPBackend.EFFICIENT_ATTENTION}
    for batch, length, heads, kv, dim in ((4, 2048, 32, 32, 64), (1, 8192, 32, 32, 64), (8, 1024, 16, 16, 64), (2, 4096, 32, 32, 128), (1, 8192, 32, 32, 128),
                                          (1, 8192, 32, 8, 128), (4, 2048, 32, 32, 128), (8, 512, 16, 16, 64), (1, 4096, 12, 12, 128), (1, 16384, 32, 32, 128)):
        for causal in (True, False) if length <= 2048 else (True,):
            for kernel, backend in backends.items():
                if kernel == "sdpa_efficient" and kv != heads:
                    continue
                try:
                    with sdpa_kernel(backend):
                        q, k, v = (leaf(randn(batch, h, length, dim)) for h in (heads, kv, kv))
                        forward = lambda _: F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=kv != heads)  # noqa: E731
                        ahead = seconds(lambda _: forward(_).detach(), [0, 0])
                        out, g = forward(0), randn(batch, heads, length, dim)
                        back = seconds(lambda _: torch.autograd.grad(out, (q, k, v), g, retain_graph=True), [0, 0])
                except Exception as error:
                    print(f"attention {kernel} {batch, length, heads, kv, dim}: {str(error)[:200]}", flush=True)
                    continue
                work = 4 * batch * heads * length**2 * dim / (2 if causal else 1)
                for name, time, flops in (("fwd", ahead, work), ("bwd", back, 2.5 * work)):
                    rows.attention.append(dict(source=rows.source, gpu=rows.gpu, **{"kernel": kernel, "pass": name}, causal=causal, batch=batch, seqlen=length,
                                               heads=heads, kv_heads=kv, head_dim=dim, dtype="bf16", tflops=round(flops / time / 1e12, 1)))
                q = k = v = out = g = None


def gemms(rows):
    """fp32 with and without TF32, odd widths, and a few bf16 products for a scale."""
    shapes = [(8192, 2048, 2048), (8192, 5632, 2048), (8192, 4096, 4096), (8192, 14336, 4096), (8192, 4096, 14336), (4096, 32000, 2048), (2048, 1536, 1536),
              (8192, 50257, 1024), (512, 4096, 4096), (8192, 1024, 4096)]
    for dtype, tf32 in (("bf16", False), ("fp32", False), ("tf32", True)):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        for m, n, k in shapes:
            kind = BF16 if dtype == "bf16" else FP32
            pair = lambda: (randn(m, k, dtype=kind), randn(n, k, dtype=kind))  # noqa: E731
            for layout, call in (("TN", lambda x: F.linear(x[0], x[1])),):
                first = pair()
                size = sum(t.numel() * t.element_size() for t in first)
                time = seconds(call, [first] + [pair() for _ in range(min(6, BEYOND_CACHE // size))])
                rows.gemm.append(dict(source=rows.source, gpu=rows.gpu, m=m, n=n, k=k, dtype=dtype, tflops=round(2 * m * n * k / time / 1e12, 1), layout=layout))
    torch.backends.cuda.matmul.allow_tf32 = False
    # Widths that are no multiple of 16 bytes, in the three products of a linear layer.
    m, k = 8192, 1024
    for n in (50304, 50260, 50258, 50257):
        x, w, g = randn(m, k), randn(n, k), randn(m, n)
        for layout, call in (("TN", lambda _: x @ w.t()), ("NN", lambda _: g @ w), ("NT", lambda _: g.t() @ x)):
            time = seconds(call, [0, 0])
            shape = dict(TN=(m, n, k), NN=(m, k, n), NT=(n, k, m))[layout]
            rows.gemm.append(dict(source=rows.source, gpu=rows.gpu, **dict(zip("mnk", shape)), dtype="bf16", tflops=round(2 * m * n * k / time / 1e12, 1), layout=layout))
        x = w = g = None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--only", help="parts: elementwise, norms, losses, optimizers, fsdp_copies, indexed, attention, gemms")
    args = parser.parse_args()
    rows = Rows()
    for part in (elementwise, norms, losses, optimizers, fsdp_copies, indexed, attention, gemms):
        if args.only and part.__name__ not in args.only.split(","):
            continue
        try:
            part(rows)
        except Exception as error:
            print(f"{part.__name__}: {type(error).__name__}: {error}", flush=True)
        torch.cuda.empty_cache()
        rows.write(pathlib.Path(args.out))
        print(part.__name__, len(rows.memory), len(rows.attention), len(rows.gemm), flush=True)


if __name__ == "__main__":
    main()
