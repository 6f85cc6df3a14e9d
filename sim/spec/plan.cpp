// The words of a plan's enumerations; the rules that check() applies are in plan_check.cpp.
#include "sim/spec/plan.h"

#include "sim/spec/plan_check.h"

namespace foreshard {

std::int64_t size_of(DType dtype) { return dtype == DType::kFp32 ? 4 : 2; }

const char* to_string(DType dtype) {
  switch (dtype) {
    case DType::kBf16:
      return "bf16";
    case DType::kFp16:
      return "fp16";
    case DType::kFp32:
      return "fp32";
  }
  return "?";
}

const char* to_string(RuntimeKind kind) {
  switch (kind) {
    case RuntimeKind::kFsdp2:
      return "fsdp2";
    case RuntimeKind::kNative:
      return "native";
  }
  return "?";
}

const char* to_string(UnitPlacement placement) {
  switch (placement) {
    case UnitPlacement::kOwn:
      return "own";
    case UnitPlacement::kRoot:
      return "root";
    case UnitPlacement::kWithNorm:
      return "with_norm";
  }
  return "?";
}

const char* to_string(Recompute recompute) {
  switch (recompute) {
    case Recompute::kNone:
      return "none";
    case Recompute::kFull:
      return "full";
    case Recompute::kSelective:
      return "selective";
  }
  return "?";
}

const char* to_string(AccumulationMode mode) {
  switch (mode) {
    case AccumulationMode::kReduceEach:
      return "reduce_each";
    case AccumulationMode::kKeepUnsharded:
      return "keep_unsharded";
  }
  return "?";
}

const char* to_string(ReductionOrder order) {
  switch (order) {
    case ReductionOrder::kMicrobatch:
      return "microbatch";
    case ReductionOrder::kLibrary:
      return "library";
  }
  return "?";
}

void check(const Plan& plan, const ModelSpec& model, const Cluster& cluster) {
  if (const auto problem = find_problem(plan, model, cluster)) throw_problem(*problem, {});
}

}  // namespace foreshard
