#!/usr/bin/env python3
"""Composer's own Trainer on a model of transformers of a few blocks and words of zeros.

    composer_train.py CASE.json      `run`: `parallelism` (parallelism_config), `precision`, `batch`, `microbatch`, `seq`, `checkpointing`; `model` is a config.json
"""
import composer.algorithms
import composer.optim
import composer.trainer.trainer
import torch
import transformers
from composer.models import HuggingFaceModel
from watch import Words, said

case = said()
run = case["run"]


class Dist:
    """composer.utils.dist; a sum of integers over ranks that say the same, which the host reads back, is done on the host as well."""

    def __getattr__(self, name):
        return getattr(composer.utils.dist, name)

    def all_reduce(self, tensor, reduce_operation="SUM"):
        value = None if tensor.is_floating_point() else tensor.cpu() * self.get_world_size()
        composer.utils.dist.all_reduce(tensor, reduce_operation=reduce_operation)
        if value is not None:
            tensor.copy_(value)


class Steps:
    """A count of steps on the GPU, which the host waits for and which nobody has computed."""

    def __init__(self, steps):
        self.steps = steps

    def item(self):
        return max(1, self.steps.item())


class AdamW(composer.optim.DecoupledAdamW):
    @staticmethod
    def adamw(params, grads, averages, squares, largest, steps, **said):
        composer.optim.DecoupledAdamW.adamw(params, grads, averages, squares, largest, [Steps(each) for each in steps], **said)


def main():
    composer.trainer.trainer.dist = Dist()
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**case["model"]), dtype=torch.float32)
    for block in model.model.layers:  # as llm-foundry, models/hf/model_wrapper.py and hf_fsdp.py
        block._fsdp_wrap = True
    blocks = set(model.model.layers)
    model.activation_checkpointing_fn = lambda module: module in blocks
    model = HuggingFaceModel(model, use_logits=True)
    optimizer = AdamW(model.parameters(), lr=1e-4, weight_decay=1e-5)
    loader = torch.utils.data.DataLoader(Words(run["seq"]), batch_size=run["batch"], sampler=composer.utils.dist.get_sampler(Words(run["seq"])))
    trainer = composer.Trainer(
        model=model, optimizers=optimizer, train_dataloader=loader, max_duration="3ba", precision=run.get("precision", "amp_bf16"), parallelism_config=run["parallelism"],
        device_train_microbatch_size=run.get("microbatch", run["batch"]), algorithms=[composer.algorithms.GradientClipping(clipping_type="norm", clipping_threshold=1.0)],
        progress_bar=False, log_to_console=False, device="gpu")
    trainer.fit()


main()
