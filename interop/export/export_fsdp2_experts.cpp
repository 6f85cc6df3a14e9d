// mesh.ep of the exported FSDP2 script: rows go to the ranks that have their experts and back.
//
// As torchtitan's ExpertParallel (distributed/expert_parallel.py of 0.2.2): how many rows, by an
// all-to-all of counts whose sums the host reads; the rows; then the same way back. Experts are
// sharded on a mesh of their own, of the same ranks.

#include <string>

#include "interop/export/export_fsdp2_parts.h"

namespace foreshard {

std::string python_exchange() {
  return R"(

class Exchange(torch.autograd.Function):
    """Rows to the ranks of EP_MESH and from them; of the gradient, the other way."""

    @staticmethod
    def forward(context, rows, received, sent):
        context.splits = sent, received
        return exchange(rows, received, sent)

    @staticmethod
    def backward(context, gradient):
        return exchange(gradient.contiguous(), *context.splits), None, None


def exchange(rows, received=None, sent=None):
    rows = functional.all_to_all_single(rows, received, sent, EP_MESH.get_group())
    return functional.wait_tensor(rows)
)";
}

std::string python_dispatch() {
  return R"(
    def forward(self, rows, counts):
        there = exchange(counts).view(EP, -1)  # from each rank, for each expert here
        sent = counts.view(EP, -1).sum(dim=1).to("cpu", non_blocking=True)
        received = there.sum(dim=1).to("cpu").tolist()
        sent = sent.tolist()
        rows = Exchange.apply(rows, received, sent)
        local = torch.arange(there.shape[1], device=rows.device).repeat(EP)
        expert = local.repeat_interleave(there.flatten(), output_size=sum(received))
        order = expert.argsort(stable=True)
        rows = self._run(rows[order], there.sum(dim=0))
        return Exchange.apply(torch.empty_like(rows).index_copy(0, order, rows), sent, received)
)";
}

std::string python_spread(const ScriptJob& job) {
  if (job.plan.mesh.ep == 1) return "";
  return R"(

def experts_of(model):
    return [module for module in model.modules() if isinstance(module, Experts)]


def spread_experts(model, dense):
    """A part of the experts for each rank; the mesh that fully_shard cuts a part over."""
    global EP_MESH
    replicate = dense["replicate"].size() if "replicate" in dense.mesh_dim_names else 1
    sizes = (replicate, dist.get_world_size() // (replicate * EP), EP)
    names = ("replicate", "efsdp", "ep")
    first = 0 if replicate > 1 else 1
    mesh = init_device_mesh(DEVICE.type, sizes[first:], mesh_dim_names=names[first:])
    EP_MESH = mesh["ep"]
    for experts in experts_of(model):
        for name, whole in list(experts.named_parameters()):
            part = nn.Parameter(distribute_tensor(whole, EP_MESH, [Shard(0)]))
            experts.register_parameter(name, part)
    return mesh[names[first:-1]]


def with_experts(by, targets, blocks):
    """What a module lists to be gathered early: blocks list other blocks with their experts."""
    if by not in blocks:
        return targets
    return [module for target in targets for module in (target, *experts_of(target))]


def clip(model, limit):
    """The norm over both meshes; PyTorch's clip_grad_norm_ takes parameters of one."""
    experts = [p for module in experts_of(model) for p in module.parameters()]
    others = [p for p in model.parameters() if all(p is not q for q in experts)]
    norms = [
        torch.nn.utils.get_total_norm([p.grad for p in part if p.grad is not None]).full_tensor()
        for part in (experts, others)
    ]
    norm = torch.stack(norms).norm()
    for part in (experts, others):
        torch.nn.utils.clip_grads_with_norm_(part, limit, norm)
)";
}

}  // namespace foreshard
