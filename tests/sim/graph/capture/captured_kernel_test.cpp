// Bytes and classes of launches by name, elements and operands, as the null GPU writes them down.
#include "sim/graph/capture/captured_kernel.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>

namespace foreshard {
namespace {

struct Operands {
  std::int64_t elements = -1, bytes = 0, largest = 0, blocks = 0;
};

Kernel kernel_of(const std::string& name, const Operands& given) {
  Capture capture = {.names = {name}};
  CapturedCall call = {
      .name = 0, .values = {256, 1, 1, 128, 1, 1, 0, given.elements, given.bytes, given.largest, given.blocks}};
  const auto made = captured_kernel(capture, call, Pass::kForward);
  EXPECT_TRUE(made && made->known) << name;
  return made ? made->kernel : Kernel{};
}

std::string strided(const std::string& functor, int at_once) {
  return "void at::native::elementwise_kernel<128, " + std::to_string(at_once) +
         ", at::native::gpu_kernel_impl_nocast<" + functor + ">(at::TensorIteratorBase&, " + functor +
         " const&)::{lambda(int)#1}>(int, ...)";
}

constexpr std::int64_t kMany = 1 << 20;

// The classes' factors are of rates: what is compared is the bytes of one class.
TEST(CapturedKernel, AFunctorSaysHowManyArraysItTouches) {
  const auto bytes = [](const std::string& functor) {
    const Kernel kernel = kernel_of(strided(functor, 4), {kMany});
    EXPECT_EQ(kernel.memory_class, MemoryClass::kStrided);
    return static_cast<double>(kernel.bytes.count());
  };
  const double one = bytes("at::native::CUDAFunctor_add<c10::BFloat16>") / 3;
  EXPECT_NEAR(bytes("at::native::BinaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, "
                    "at::native::binary_internal::MulFunctor<float> >"),
      3 * one, 2);
  EXPECT_NEAR(bytes("at::native::AUnaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, "
                    "at::native::binary_internal::MulFunctor<float> >"),
      2 * one, 2);
  EXPECT_NEAR(bytes("at::native::where_kernel_impl(at::TensorIterator&)::{lambda()#1}::operator()() "
                    "const::{lambda(c10::BFloat16, c10::BFloat16, c10::BFloat16)#1}"),
      4 * one, 2);
}

// A product with a vector: the vector's block is small, so its array is not one of all elements.
TEST(CapturedKernel, ABroadcastArrayIsAsLargeAsItsBlock) {
  const std::string name =
      strided("at::native::BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >", 2);
  constexpr std::int64_t kArray = 4 * kMany, kVector = 512;
  const std::int64_t all = kernel_of(name, {kMany, 3 * kArray, kArray, 3}).bytes.count();
  const std::int64_t broadcast = kernel_of(name, {kMany, 2 * kArray + kVector, kArray, 3}).bytes.count();
  EXPECT_NEAR(
      static_cast<double>(broadcast) / static_cast<double>(all), (2.0 * kArray + kVector) / (3.0 * kArray), 1e-6);
  // Two views of one block: as many arrays as the functor takes.
  EXPECT_EQ(kernel_of(name, {kMany, 2 * kArray, kArray, 2}).bytes.count(), all);
}

TEST(CapturedKernel, MemoryEfficientAttentionSaysItsPrecision) {
  for (const auto& [type, is_fp32] : {std::pair("f32", true), std::pair("bf16", false)}) {
    const Kernel kernel = kernel_of(std::string("fmha_cutlassF_") + type + "_aligned_64x64_rf_sm80(...)", {});
    EXPECT_EQ(kernel.kind, KernelKind::kAttention);
    EXPECT_EQ(kernel.fp32, is_fp32) << type;
  }
}

// What a functor of several tensors reads and writes of its lists.
TEST(CapturedKernel, ListsAreReadAndWrittenAsTheirFunctorSays) {
  const auto bytes = [](const std::string& functor, int lists) {
    const std::string name =
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous "
        "namespace)::TensorListMetadata<" +
        std::to_string(lists) + ">, at::native::(anonymous namespace)::" + functor + ", ...>(...)";
    return static_cast<double>(kernel_of(name, {-1, lists * kMany, kMany, lists}).bytes.count());
  };
  const double list = bytes("BinaryOpScalarFunctor<float, 1, 1, 0>", 1) / 2;
  EXPECT_NEAR(bytes("UnaryOpFunctor<float, 2, 1, 1>", 2), 2 * list, 4);
  EXPECT_NEAR(bytes("TernaryOpScalarFunctor<float, 2, 2, 0>", 2), 3 * list, 4);
  EXPECT_NEAR(bytes("PointwiseOpScalarListFunctor<float, 3, 3, 0>", 3), 4 * list, 4);
}

CapturedCall strided_call(std::int64_t elements, std::int64_t asked, std::int64_t dimensions) {
  return CapturedCall{
      .name = 0, .values = {256, 1, 1, 128, 1, 1, 0, elements, 0, 0, 0, 8 * elements, asked, dimensions}};
}

// Elements that a strided kernel looks for take time by themselves; sectors for one of them more.
TEST(CapturedKernel, StridedElementsTakeTimeOfTheirOwn) {
  Capture capture = {.names = {strided("at::native::CUDAFunctor_add<float>", 2)}};
  const auto busy = [&](std::int64_t elements, std::int64_t asked, std::int64_t dimensions) {
    return captured_kernel(capture, strided_call(elements, asked, dimensions), Pass::kForward)->kernel.flops.count();
  };
  EXPECT_NEAR(busy(2 * kMany, 0, 3), 2 * busy(kMany, 0, 3), 1);
  EXPECT_GT(busy(kMany, 0, 4), busy(kMany, 0, 2));
  EXPECT_GT(busy(kMany, 3 * 32 * kMany, 2), 2 * busy(kMany, 3 * 4 * kMany, 2));
}

// cuDNN's attention works in tiles: 197 positions take what 256 take, a causal mask leaves out what
// lies wholly behind it.
TEST(CapturedKernel, AttentionIsOfWholeTiles) {
  Capture capture = {.names = {"cudnn attention_forward"}};
  const auto flops = [&](std::int64_t sequence, bool causal) {
    CapturedCall call = {.kind = CapturedCall::Kind::kLibrary,
        .name = 0,
        .values = {4 * 2 * 16 * sequence * 64, 1, 16, sequence, sequence, 64, causal ? 1 : 0}};
    const Kernel kernel = captured_kernel(capture, call, Pass::kForward)->kernel;
    EXPECT_TRUE(kernel.in_tiles);
    return kernel.flops.count();
  };
  EXPECT_EQ(flops(197, false), flops(256, false));
  EXPECT_EQ(flops(256, true), flops(256, false) * 3 / 4);
}

TEST(CapturedKernel, NamesWithCommasAreRowsOfTheTable) {
  const std::string functor = "at::native::CUDAFunctor_add<float>";
  EXPECT_EQ(kernel_of(strided(functor, 2), {kMany}).memory_class, MemoryClass::kElementwise);
  EXPECT_EQ(kernel_of(strided(functor, 4), {kMany}).memory_class, MemoryClass::kStrided);
}

// A norm over a batch has a block for each channel, and its input's elements to go through.
TEST(CapturedKernel, WhereThreadsBindTheirOperationsAreCounted) {
  const std::string name = "void at::native::batch_norm_collect_statistics_kernel<at::native::Var, ";
  const Kernel half =
      kernel_of(name + "c10::BFloat16, c10::BFloat16, float, int>(...)", {-1, 2 * kMany + 1024, 2 * kMany, 3});
  EXPECT_EQ(half.threads, 256 * 128);
  EXPECT_GT(half.flops.count(), kMany);
  const Kernel whole = kernel_of(name + "float, float, float, int>(...)", {-1, 4 * kMany + 1024, 4 * kMany, 3});
  EXPECT_EQ(whole.flops.count(), half.flops.count());  // as many elements
}

TEST(CapturedKernel, AConvolutionIsAProductAndLongerInTf32) {
  const auto kernel = [](std::int64_t type, std::int64_t pixels = kMany) {
    Capture capture = {.names = {"cudnn convolution_forward"}};
    CapturedCall call = {
        .kind = CapturedCall::Kind::kLibrary, .name = 0, .values = {1 << 20, pixels, 256, 576, 1, type}};
    return captured_kernel(capture, call, Pass::kForward)->kernel;
  };
  constexpr std::int64_t kFloat = 0, kBf16 = 14;
  EXPECT_EQ(kernel(kBf16).m, kMany);
  EXPECT_EQ(kernel(kBf16).n, 256);
  EXPECT_EQ(kernel(kBf16).flops.count(), 2.0 * kMany * 256 * 576);
  // What stands beside it is as much for few pixels, whose last rows are a tile.
  EXPECT_EQ(kernel(kBf16, 130).m, 256);
  EXPECT_GT(kernel(kBf16, 130).k, 10 * kernel(kBf16).k);
  EXPECT_EQ(kernel(kFloat).flops.count(), kernel(kBf16).flops.count());
  EXPECT_NEAR(static_cast<double>(kernel(kFloat).k) / static_cast<double>(kernel(kBf16).k), 2, 0.1);
  EXPECT_FALSE(kernel(kFloat).fp32);
}

// 32 groups of 4 channels are one kernel, busy for every output and tap; 4 groups of 72 are four
// products, one behind another.
TEST(CapturedKernel, GroupsOfChannelsAreOneKernelOrAProductEach) {
  const auto kernel = [](const char* name, std::array<std::int64_t, 4> shape) {
    Capture capture = {.names = {name}};
    CapturedCall call = {.kind = CapturedCall::Kind::kLibrary,
        .name = 0,
        .values = {1 << 20, shape[0], shape[1], shape[2], shape[3], 14}};
    return captured_kernel(capture, call, Pass::kForward)->kernel;
  };
  constexpr const char* kForward = "cudnn convolution_forward in groups";
  const Kernel narrow = kernel(kForward, {50176, 8, 72, 32});
  EXPECT_EQ(narrow.kind, KernelKind::kMemory);
  EXPECT_NEAR(kernel(kForward, {2 * 50176, 8, 72, 32}).flops.count(), 2 * narrow.flops.count(), 1);
  // The filter's gradient has as many outputs and taps, told in another order.
  const Kernel filter = kernel("cudnn convolution_backward_filter in groups", {8, 72, 50176, 32});
  EXPECT_EQ(filter.flops.count(), narrow.flops.count());
  const Kernel wide = kernel(kForward, {100352, 72, 648, 4});
  EXPECT_EQ(wide.kind, KernelKind::kGemm);
  EXPECT_EQ(wide.m, 100352);
  EXPECT_EQ(wide.kernels, 4);
  EXPECT_EQ(wide.flops.count(), 4 * 2.0 * 100352 * 72 * 648);
}

// A block for each row: twice the rows of half the width take longer, and so does twice the width.
TEST(CapturedKernel, ALayerNormTakesTimeForEachRow) {
  const auto busy = [](std::int64_t rows, std::int64_t width) {
    Capture capture;
    capture.names = {"void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>"};
    CapturedCall call = {.name = 0};
    const std::int64_t bytes = 4 * rows * width;
    call.values = {rows, 1, 1, 32, 4, 1, 24, -1, 2 * bytes, bytes, 5};
    return captured_kernel(capture, call, Pass::kForward)->kernel.flops.count();
  };
  EXPECT_NEAR(busy(16384, 512), 2 * busy(8192, 512), 1);
  EXPECT_GT(busy(16384, 512), busy(8192, 1024));
  EXPECT_GT(busy(8192, 1024), busy(8192, 512));
}

CapturedCall launch_of(std::array<std::int64_t, 5> grid_and_block, std::int64_t bytes) {
  const auto& [x, y, z, columns, rows] = grid_and_block;
  return {.name = 0, .values = {x, y, z, columns, rows, 1, 0, -1, bytes, bytes / 2, 2, bytes, bytes / 4096, 4}};
}

// As many blocks, of which ever more share columns.
TEST(CapturedKernel, BlocksThatShareColumnsMeet) {
  Capture capture = {.names = {"void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float>>"}};
  const auto busy = [&](std::int64_t x, std::int64_t y) {
    return captured_kernel(capture, launch_of({x, y, 1, 32, 4}, kMany), Pass::kForward)->kernel.flops.count();
  };
  EXPECT_GT(busy(512, 2), busy(1024, 1));
  EXPECT_NEAR(busy(8, 128) - busy(16, 64), 2 * (busy(16, 64) - busy(32, 32)), 1);
}

// Rows of little: what they move binds no more, but how fast their blocks begin.
TEST(CapturedKernel, BlocksBeginOneBehindAnother) {
  Capture capture = {.names = {"void at::native::(anonymous namespace)::vectorized_gather_kernel<16, long>()"}};
  const auto busy = [&](std::int64_t blocks, std::int64_t each) {
    return captured_kernel(capture, launch_of({blocks, 1, 1, 32, 1}, blocks * each), Pass::kForward)
        ->kernel.flops.count();
  };
  EXPECT_GT(busy(kMany, 64), 0);
  EXPECT_EQ(busy(2 * kMany, 64), 2 * busy(kMany, 64));
  EXPECT_EQ(busy(kMany, 1 << 14), 0);
}

// What a fused optimizer moves goes by its functor's own type: half of fp32's in 16 bits.
TEST(CapturedKernel, ChunksAreOfTheirFunctorsType) {
  const auto bytes = [](const std::string& type) {
    const std::string name =
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous "
        "namespace)::FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<" +
        type + ", 4, (at::native::ADAM_MODE)1, false>, float const*, double>(...)";
    return kernel_of(name, {-1, std::int64_t{1} << 40, kMany, 4}).bytes.count();
  };
  EXPECT_NEAR(static_cast<double>(bytes("float")), 2 * static_cast<double>(bytes("c10::BFloat16")), 4);
}

TEST(CapturedKernel, AttentionIsOfAKernelByItsName) {
  EXPECT_EQ(attention_kernel_of("cudnn attention_forward"), "cudnn");
  EXPECT_EQ(attention_kernel_of("void pytorch_flash::flash_fwd_kernel<...>"), "flash");
  EXPECT_EQ(attention_kernel_of("fmha_cutlassF_bf16_aligned_64x64"), "efficient");
  EXPECT_EQ(attention_kernel_of("void flash::flash_fwd_kernel<...>"), "fa2");
  EXPECT_EQ(attention_kernel_of("cublasGemmEx"), "");
}

}
}
