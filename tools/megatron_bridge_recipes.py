"""interop/steps/megatron_bridge_recipes.csv, from a clone of Megatron-Bridge (Apache-2.0):

    git clone https://github.com/NVIDIA-NeMo/Megatron-Bridge && python3 tools/megatron_bridge_recipes.py Megatron-Bridge

What a release's performance recipes set besides degrees and batches (scripts/performance/configs/**/
*workload_base_configs.py at its tag), a line for recipes that set the same: each GPU/dtype/micro-batch/pp/vp/ep.
"""

import collections
import re
import subprocess
import sys
import types
from pathlib import Path

RELEASES = {"25.11": "v0.2.0", "26.02": "v0.3.0", "26.04": "v0.4.0", "26.06": "v0.5.1"}
MODELS = {
    "DEEPSEEK_V3": "deepseek-v3", "GPT_OSS_120B": "gpt-oss-120b", "GPT_OSS_20B": "gpt-oss-20b", "KIMI_K2": "kimi-k2",
    "QWEN3_30B_A3B": "qwen3-30b-a3b", "QWEN3_235B_A22B": "qwen3-235b-a22b",
}
# v0.1.0rc4: scripts/performance/run_script.py and the perf_matrix of configs/*.yaml, which are no such files. Experts
# of fixed capacity need all-to-alls (training/utils/moe_token_drop.py), and graphs are whole layers'.
OLDEST = """\
25.09,deepseek-v3,deepep,,yes,mla_up_proj mlp,H100/BF16/1/8/4/64 H100/FP8_CS/1/8/4/64
25.09,deepseek-v3,,,,mla_up_proj,B200/BF16/1/16/1/8 B200/FP8_CS/1/16/1/8 B200/FP8_MX/1/16/1/8 \
GB200/BF16/1/4/4/64 GB200/FP8_CS/1/4/4/64 GB200/FP8_MX/1/4/4/64
25.09,qwen3-30b-a3b,,iteration,,,B200/BF16/1/1/1/8 B200/FP8_CS/1/1/1/8 B200/FP8_MX/1/1/1/8 \
GB200/BF16/4/1/1/8 GB200/FP8_CS/4/1/1/8 GB200/FP8_MX/4/1/1/8
25.09,qwen3-30b-a3b,,,,,H100/BF16/1/2/12/8 H100/FP8_CS/2/2/12/8
25.09,qwen3-235b-a22b,,iteration,,,GB200/BF16/1/8/1/8 GB200/FP8_CS/1/8/1/8 GB200/FP8_MX/1/8/1/8
25.09,qwen3-235b-a22b,,,,,H100/BF16/1/8/4/32 H100/FP8_CS/1/8/4/32 B200/BF16/1/8/2/8 B200/FP8_CS/1/8/2/8 \
B200/FP8_MX/1/8/2/8
"""
# "selective" of all its recipes, of core_attn where they name no modules (transformer_config.py).
DEFAULT_MODULES = {"deepseek-v3": ["core_attn"]}
NAME = re.compile(r"(.*?)(?:_PRETRAIN)?(?:_CONFIG)?_(GB300|GB200|B300|B200|H100)_(BF16|FP8_CS|FP8_MX|FP8_SC|NVFP4)_")


def graphs(recipe):
    """As megatron.cuda_graphs: what of a layer is captured, or of the step."""
    scope = recipe.cuda_graph_scope or []
    scope = [scope] if isinstance(scope, str) else scope
    if not recipe.cuda_graph_impl or recipe.cuda_graph_impl == "none":
        return ""
    if recipe.cuda_graph_impl == "full_iteration" or "full_iteration" in scope:
        return "iteration"
    return "routers" if scope and "attn" not in scope else "modules"


def recipes(repository, tag):
    def git(*words):
        return subprocess.run(["git", "-C", repository, *words], capture_output=True, text=True, check=True).stdout

    source = git("show", f"{tag}:scripts/performance/utils/utils.py")
    kind = re.search(r"@dataclass[^\n]*\nclass WorkloadBaseConfig.*?(?=\n(?:def|class|@dataclass) )", source, re.S)
    names = {}
    exec("from dataclasses import dataclass, replace\nfrom typing import *\n" + kind[0], names)
    utils = types.ModuleType("utils.utils")
    utils.WorkloadBaseConfig = names["WorkloadBaseConfig"]
    sys.modules.update({"utils": types.ModuleType("utils"), "utils.utils": utils})
    for path in git("ls-tree", "-r", tag, "--name-only", "scripts/performance/configs").split():
        if not path.endswith("workload_base_configs.py"):
            continue
        defined = {}
        exec(git("show", f"{tag}:{path}"), defined)
        for name, recipe in defined.items():
            match = NAME.match(name + "_")
            if isinstance(recipe, utils.WorkloadBaseConfig) and match and match[1] in MODELS:
                yield MODELS[match[1]], match[2], match[3], recipe


def main():
    lines = collections.OrderedDict()
    for release, tag in RELEASES.items():
        found = {}  # the last of several variants
        for model, gpu, dtype, r in recipes(sys.argv[1], tag):
            place = (r.micro_batch_size, r.pipeline_model_parallel_size, r.virtual_pipeline_model_parallel_size or 1,
                     r.expert_model_parallel_size)
            found[model, "/".join([gpu, dtype, *map(str, place)])] = (
                r.moe_flex_dispatcher_backend or "", graphs(r), "yes" if r.moe_a2a_overlap else "",
                " ".join(r.recompute_modules or DEFAULT_MODULES.get(model, [])))
        for (model, where), settings in found.items():
            lines.setdefault((release, model, *settings), []).append(where)
    text = "release,model,dispatcher,cuda_graphs,expert_overlap,recompute_modules,recipes\n" + OLDEST
    text += "".join(",".join(key) + "," + " ".join(where) + "\n" for key, where in lines.items())
    path = Path(__file__).parents[1] / "interop/steps/megatron_bridge_recipes.csv"
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
