#include "calibration/gpu_names.h"

#include <gtest/gtest.h>

#include <string>

namespace foreshard {
namespace {

TEST(GpuNames, FreeTextMeansAMachine) {
  const std::vector<Machine> machines = list_machines();
  const auto key = [&](const char* text) {
    const Machine* found = match_gpu(text, machines);
    return found == nullptr ? std::string() : found->key;
  };
  struct Case {
    const char* text;
    const char* key;
  };
  for (const Case& each : {
           Case{"NVIDIA A100-SXM4-80GB", "a100-80gb"},
           Case{"A100-40GB", "a100-40gb"},
           Case{"A100-SXM (400W)", "a100-80gb"},
           Case{"A100 class (GPU not stated)", "a100-80gb"},
           Case{"NVIDIA A100 PCIe", "a100-pcie-80gb"},
           Case{"A100 80 GB PCIe", "a100-pcie-80gb"},
           Case{"NVIDIA H100 80GB HBM3", "h100-sxm"},
           Case{"h100_sxm", "h100-sxm"},
           Case{"H100-80GB SXM5", "h100-sxm"},
           Case{"NVIDIA H100 NVL*", "h100-nvl"},
           Case{"NVIDIA H100 PCIe", "h100-pcie"},
           Case{"NVIDIA H100 SXM 96GB", "h100-96gb-500w"},
           Case{"NVIDIA H200", "h200"},
           Case{"GB200 (per GPU)", "gb200"},
           Case{"NVIDIA B300 SXM6 AC", "b300"},
           Case{"nvidia gb300", "gb300"},
           Case{"NVIDIA GH200 144G HBM3e", "gh200-144gb"},
           Case{"GH200", "gh200-96gb"},
           Case{"NVIDIA L4", "l4"},
           Case{"L40", "l40"},
           Case{"NVIDIA L40S", "l40s"},
           Case{"NVIDIA A10G", "a10g"},
           Case{"A10", "a10"},
           Case{"Tesla V100-SXM2-16GB", "v100-16gb"},
           Case{"V100", "v100-32gb"},
           Case{"NVIDIA GeForce RTX 4090", "rtx-4090"},
           Case{"rtx4090", "rtx-4090"},
           Case{"RTX-4090 (24 GB)", "rtx-4090"},
           Case{"NVIDIA RTX A6000", "rtx-a6000"},
           Case{"NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"},
           Case{"NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"},
           Case{"AMD Instinct MI300X", "mi300x"},
           Case{"MI250X (both GCDs)", "mi250x"},
           Case{"Abacus 3000", ""},
           Case{"", ""},
       }) {
    EXPECT_EQ(key(each.text), each.key) << each.text;
  }
}

TEST(GpuNames, EveryKeyAndAliasMeansItself) {
  const std::vector<Machine> machines = list_machines();
  for (const Machine& machine : machines) {
    EXPECT_EQ(match_gpu(machine.key, machines), &machine) << machine.key;
    for (const std::string& alias : machine.aliases) EXPECT_EQ(match_gpu(alias, machines), &machine) << alias;
  }
}

TEST(GpuNames, RelativesAreOfTheSameGeneration) {
  const std::vector<Machine> machines = list_machines();
  const auto gpu = [&](const char* key) { return match_gpu(key, machines)->node.gpu; };
  EXPECT_EQ(distance(gpu("h100"), gpu("h100")), 0);
  EXPECT_LT(distance(gpu("h800"), gpu("h100")), distance(gpu("h800"), gpu("h200")));
  EXPECT_LT(distance(gpu("h20"), gpu("h100")), distance(gpu("h20"), gpu("a100")));
  EXPECT_LT(distance(gpu("l40"), gpu("l40s")), distance(gpu("l40"), gpu("a100")));
  EXPECT_LT(distance(gpu("mi325x"), gpu("mi300x")), distance(gpu("mi325x"), gpu("h200")));
  // The same chip at 400 W, not the card of 300 W whose memory is nearer.
  EXPECT_LT(distance(gpu("a100-40gb"), gpu("a100-80gb")), distance(gpu("a100-40gb"), gpu("a100-pcie-80gb")));
}

TEST(GpuNames, ProtocolIsTheSourceWithoutGpuAndVersion) {
  const std::vector<Machine> machines = list_machines();
  EXPECT_EQ(protocol_of("aiconfigurator:h100_sxm/gemm/trtllm/1.3.0rc20", machines),
      protocol_of("aiconfigurator:l40s/gemm/trtllm/1.0.0", machines));
  EXPECT_NE(protocol_of("aiconfigurator:h100_sxm/gemm/sglang/0.5.10", machines),
      protocol_of("aiconfigurator:h100_sxm/gemm/trtllm/1.3.0rc20", machines));
}

}
}
