// MeasuredPoints in files: part of profiles of machines that were measured themselves, with what
// measurements have in common with them. Sizes are two lists of one length, `bytes` and
// `seconds`: a curve fits on a screen.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

#include "calibration/measurements.h"
#include "sim/base/fields.h"
#include "sim/spec/calibration.h"

namespace foreshard {

inline constexpr double kShortestTime = 1e-9;  // s
inline constexpr double kLongestTime = 1e6;
inline constexpr std::int64_t kLargestSize = std::int64_t{1} << 20;  // products of three fit 64 bits
inline constexpr std::int64_t kLargestHead = 4096;
inline constexpr double kMostBytes = 1e15;

inline constexpr std::array<std::string_view, 2> kPassWords = {"forward", "backward"};
inline constexpr std::array<std::string_view, 2> kIsFp32Words = {"bf16", "fp32"};
inline constexpr std::array<std::string_view, 2> kOrderWords = {"microbatch", "library"};

// The words of all values of an enumeration.
template <typename Enum, std::size_t count>
std::array<std::string_view, count> words_of() {
  std::array<std::string_view, count> words;
  for (std::size_t i = 0; i < count; ++i) words[i] = to_string(static_cast<Enum>(i));
  return words;
}
inline const auto kFunctionWords = words_of<Function, kFunctions>();
inline const auto kOperationWords = words_of<CollectiveOperation, kCollectiveOperations>();

void shape_fields(auto& io, GemmPoint& p) {
  io("pass", p.pass, kPassWords);
  io("dtype", p.fp32, kIsFp32Words);
  io("m", p.m, 1, kLargestSize);
  io("n", p.n, 1, kLargestSize);
  io("k", p.k, 1, kLargestSize);
}
void shape_fields(auto& io, AttentionPoint& p) {
  io("pass", p.pass, kPassWords);
  io("dtype", p.fp32, kIsFp32Words);
  io("causal", p.causal);
  io("batch", p.batch, 1, kLargestSize);
  io("sequence", p.sequence, 1, kLargestSize);
  io("heads", p.heads, 1, kLargestSize);
  io("kv_heads", p.kv_heads, 1, kLargestSize);
  io("head_dim", p.head_dim, 1, kLargestHead);
}

void fields(auto& io, GemmPoint& p) {
  shape_fields(io, p);
  io("seconds", p.seconds, kShortestTime, kLongestTime);
}
void fields(auto& io, AttentionPoint& p) {
  shape_fields(io, p);
  io("seconds", p.seconds, kShortestTime, kLongestTime);
  io.optional(!p.kernel.empty(), "kernel", p.kernel);
}

void size_fields(auto& io, std::vector<SizePoint>& points) {
  std::vector<double> bytes, seconds;
  for (const SizePoint& point : points) {
    bytes.push_back(point.bytes);
    seconds.push_back(point.seconds);
  }
  io("bytes", bytes, 1, kMostBytes);
  io("seconds", seconds, kShortestTime, kLongestTime);
  io.require(!bytes.empty(), "bytes", "is empty", "at least one size");
  io.require(bytes.size() == seconds.size(), "seconds", "has another length than bytes", "one time per size");
  io.require(std::ranges::adjacent_find(bytes, std::greater_equal()) == bytes.end(), "bytes",
      "has a size that is not above the size before", "ascending sizes");
  io.require(
      std::ranges::is_sorted(seconds), "seconds", "has a time that is below the time before", "times that do not fall");
  points.clear();
  for (std::size_t i = 0; i < bytes.size(); ++i) points.push_back({bytes[i], seconds[i]});
}
void fields(auto& io, FunctionPoints& p) {
  io("function", p.function, kFunctionWords);
  io("pass", p.pass, kPassWords);
  io("dtype", p.fp32, kIsFp32Words);
  size_fields(io, p.points);
}
void fields(auto& io, CollectivePoints& p) {
  io("operation", p.operation, kOperationWords);
  io("order", p.order, kOrderWords);
  io("group", p.group, 2, 1'000'000);
  size_fields(io, p.points);
}

void fields(auto& io, MeasuredPoints& points) {
  io("gemm", points.gemm);
  io("attention", points.attention);
  io("memory", points.functions);
  io("collectives", points.collectives);
}

void fields(auto& io, MeasuredHost& host) {
  io("name", host.name);
  io("cpu", host.cpu);
  io("cores", host.cores, 1, 1'000'000);
  io("memory_bytes", host.memory, 1);
  io("kernel", host.kernel);
}

}
