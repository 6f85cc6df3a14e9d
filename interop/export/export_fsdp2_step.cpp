// One training step of the exported script, as the plan says: each line stands for a key of it.
#include <fmt/format.h>

#include <string>

#include "interop/export/export_fsdp2_parts.h"
#include "sim/base/letters.h"

namespace foreshard {
namespace {

std::string optimizer(const Plan& plan) {
  const Optimizer& o = plan.optimizer;
  std::string how;
  switch (o.implementation) {
    case Optimizer::Implementation::kForeach:
      how = ", foreach=True";
      break;
    case Optimizer::Implementation::kFused:
      how = ", fused=True";
      break;
    case Optimizer::Implementation::kLoop:
      how = ", foreach=False";
      break;
  }
  const std::string made =
      o.kind == Optimizer::Kind::kAdamW
          ? fmt::format("torch.optim.AdamW(groups, lr={}, betas=({}, {}), eps={}{})",
                        o.learning_rate, o.beta1, o.beta2, o.epsilon, how)
          : fmt::format("torch.optim.SGD(groups, lr={}{})", o.learning_rate,
                        o.implementation == Optimizer::Implementation::kFused ? "" : how);
  std::string schedule = "    scheduler = None\n";
  if (o.warmup_steps > 0 || o.decay_steps) {
    schedule = fmt::format(R"(
    def rate(step):
        step += 1
        if step < {0}:
            return step / {0}
        if not {1}:
            return 1.0
        part = min(1.0, (step - {0}) / max(1, {1}))
        least = {2}
        return least + (1 - least) * 0.5 * (1 + math.cos(math.pi * part))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
)",
                           o.warmup_steps, o.decay_steps.value_or(0),
                           o.learning_rate > 0 ? o.min_learning_rate / o.learning_rate : 0.0);
    schedule = "    import math\n" + schedule;
  }
  // foreach takes tensors of one mesh.
  const bool spread = plan.mesh.ep > 1;
  std::string split, experts;
  if (spread) {
    split = R"(    experts = [p for module in experts_of(model) for p in module.parameters()]
    others = [p for p in trained if all(p is not q for q in experts)]
)";
    experts =
        fmt::format("        {{\"params\": experts, \"weight_decay\": {}}},\n", o.weight_decay);
  }
  return fmt::format(R"(

# ---- one step ----


def optimizer_of(model):
    trained = [p for p in model.parameters() if p.requires_grad]
{3}    groups = [
        {{"params": [p for p in {4} if p.ndim > 1], "weight_decay": {0}}},
        {{"params": [p for p in {4} if p.ndim < 2], "weight_decay": 0.0}},
{5}    ]
    groups = [group for group in groups if group["params"]]
    optimizer = {1}
{2}    return optimizer, scheduler


def tokens():
    return torch.randint(VOCABULARY, (MICRO_BATCH, SEQUENCE), device=DEVICE)
)",
                     o.weight_decay, made, schedule, split, spread ? "others" : "trained", experts);
}

std::string loss_function(const Plan& plan) {
  std::string text = "\n\ndef loss_of(logits, labels):\n";
  if (plan.loss.kind == Loss::Kind::kChunked) {
    return text + fmt::format(R"(    parts = zip(logits.chunk({0}, dim=1), labels.chunk({0}, dim=1))
    losses = [
        F.cross_entropy(part.flatten(0, 1).float(), label.flatten(), reduction="sum")
        for part, label in parts
    ]
    return sum(losses) / labels.numel()
)",
                              plan.loss.chunks);
  }
  const bool casts = plan.loss.kind != Loss::Kind::kEagerCompute;
  text += fmt::format("    return F.cross_entropy(logits.flatten(0, 1){}, labels.flatten())\n",
                      casts ? ".float()" : "");
  if (plan.loss.kind == Loss::Kind::kCompiled) {
    text += R"(

if torch.cuda.is_available():
    loss_of = torch.compile(loss_of)
)";
  }
  return text;
}

}  // namespace

const char* torch_dtype(DType dtype) {
  return word_at(dtype, {"torch.bfloat16", "torch.float16", "torch.float32"});
}

std::string python_step(const Plan& plan) {
  const AccumulationDetails& details = plan.accumulation_details;
  std::string before;
  if (plan.accumulation == AccumulationMode::kKeepUnsharded) {
    before += "        model.set_requires_gradient_sync(last)\n";
  }
  if (details.all_reduce == When::kLast) {
    before += "        model.set_requires_all_reduce(last)\n";
  }
  if (details.reshard_after_backward == When::kLast) {
    before += "        model.set_reshard_after_backward(last)\n";
  }
  if (details.is_last_backward == When::kLast) {
    before += "        model.set_is_last_backward(last)\n";
  }
  if (!before.empty()) before = "        last = micro == ACCUMULATION - 1\n" + before;
  const bool shares_sequences = plan.mesh.cp > 1;
  std::string text = optimizer(plan) + loss_function(plan);
  text += "\n\ndef train_step(model, optimizer, scheduler):\n";
  if (plan.evaluation.in_step) {
    text += "    with torch.no_grad():\n";
    text += shares_sequences ? "        model(*own_part(tokens()))\n" : "        model(tokens())\n";
  }
  const bool accumulates = plan.batch.accumulation > 1;
  text +=
      fmt::format("    for {} in range(ACCUMULATION):\n{}", before.empty() ? "_" : "micro", before);
  text += shares_sequences ? "        inputs, positions, labels = own_part(tokens(), tokens())\n"
                           : "        inputs, labels = tokens(), tokens()\n";
  const char* call = shares_sequences ? "model(inputs, positions)" : "model(inputs)";
  if (plan.autocast) {
    text += fmt::format("        with torch.autocast(DEVICE.type, {}):\n            logits = {}\n",
                        torch_dtype(*plan.autocast), call);
  } else {
    text += fmt::format("        logits = {}\n", call);
  }
  const bool cuts_loss = plan.mesh.tp > 1 && plan.tensor_parallel.loss;
  const char* indent = cuts_loss ? "            " : "        ";
  if (cuts_loss) text += "        with loss_parallel():\n";
  text += fmt::format("{}loss = loss_of(logits, labels){}\n", indent,
                      accumulates ? " / ACCUMULATION" : "");
  if (plan.logits == Logits::kReleased) text += fmt::format("{}del logits\n", indent);
  text += fmt::format("{}loss.backward()\n", indent);
  if (cuts_loss) text += "        loss = loss.full_tensor()\n";
  if (accumulates) text += "        loss = loss.detach() * ACCUMULATION\n";
  if (plan.optimizer.clip_norm) {
    const char* call =
        plan.mesh.ep > 1
            ? "    clip(model, {})\n"
            : "    torch.nn.utils.clip_grad_norm_(\n"
              "        [p for p in model.parameters() if p.requires_grad], {}\n    )\n";
    text += fmt::format(fmt::runtime(call), *plan.optimizer.clip_norm);
  }
  text += "    optimizer.step()\n";
  if (plan.optimizer.warmup_steps > 0 || plan.optimizer.decay_steps) {
    text += "    scheduler.step()\n";
  }
  text += "    optimizer.zero_grad()\n";
  text +=
      plan.host_sync == HostSync::kStep ? "    return loss.item()\n" : "    return loss.detach()\n";
  return text;
}

}  // namespace foreshard
