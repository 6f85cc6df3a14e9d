// The checks of self_check.h, one member each: what was seen as text, or an exception.
#pragma once

#include <ATen/Functions.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "exec/checks/self_check.h"
#include "exec/comm/world.h"
#include "exec/compute/device_operations.h"
#include "exec/device/accelerator.h"
#include "exec/device/device_seconds.h"

namespace foreshard {

class Checks {
 public:
  explicit Checks(Accelerator& device);

  using Check = std::string (Checks::*)();
  struct Named {
    const char* name;
    Check check;
  };
  static std::vector<Named> all();
  Lane lane() const { return main_; }  // that every check begins and ends on

 private:
  std::string identity();
  std::string memory();
  std::string out_of_memory();
  std::string events();
  std::string lanes();
  std::string waits();
  std::string gemm_fp32();
  std::string gemm_bf16();
  std::string gemm_rate();
  std::string attention(DeviceAttention kernel, std::int64_t head_dim);
  std::string both_head_dims(DeviceAttention kernel);
  std::string flash();
  std::string cudnn();
  std::string efficient();
  std::string rms_norm();
  std::string wide_rms_norm();
  std::string layer_norm();
  std::string gelu();
  std::string bias();
  std::string rotate();
  std::string silu();
  std::string add_rows();
  std::string cross_entropy();
  std::string adamw();
  std::string fused_adamw(const at::Tensor& p, const at::Tensor& g, const at::Tensor& wanted);
  std::string swapped_storage();
  std::string paced_bytes();
  std::string paced_duration();
  std::string paced_beside_gemm();
  std::string nccl();
  std::string host_cost();
  std::string allocator();
  std::string clocks();
  std::string graph_capture();

  std::unique_ptr<DeviceCommunicator> paced(int ctas);

  // --- for all of them ---
  static at::Tensor randn(at::IntArrayRef shape) { return at::randn(shape, at::TensorOptions().dtype(at::kFloat)); }
  at::Tensor put(const at::Tensor& t) const { return t.to(on_); }
  at::Tensor put_bf16(const at::Tensor& t) const { return t.to(on_, at::kBFloat16); }
  static at::Tensor rounded(const at::Tensor& t) { return t.to(at::kBFloat16).to(at::kFloat); }
  // A bound on a time: none on the stand-in, which shares its cores with whatever runs there.
  double at_most(double seconds) const { return device_.is_gpu() ? seconds : HUGE_VAL; }
  static void expect(bool holds, const std::string& what);
  // "WHAT 1.2e-06"; throws where it is more than the tolerance.
  static std::string near(const char* what, const at::Tensor& got, const at::Tensor& wanted, double tolerance);
  void needs_gpu() const;
  double median_of(int runs, auto work) {
    std::vector<double> all;
    for (int i = 0; i < runs; ++i) all.push_back(device_seconds(device_, work));
    std::ranges::sort(all);
    return all[all.size() / 2];
  }

  Accelerator& device_;
  c10::Device on_;
  Lane main_ = 0, other_ = 0;
  std::unique_ptr<World> world_;
};

}
