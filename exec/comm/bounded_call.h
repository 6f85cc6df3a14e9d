// Calls that must come back even when the library below them does not: a store whose server is
// frozen answers neither success nor failure.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <optional>
#include <thread>
#include <utility>

namespace foreshard {

// Runs `call` on a thread of its own and returns what it returns, or throws what it throws. Gives
// up after `limit`, or as soon as `stop`, asked every 50 ms, says so: std::nullopt, and the thread
// is left behind. `call` must therefore own, or share, everything that it touches.
auto call_within(std::chrono::milliseconds limit, auto call, const std::function<bool()>& stop = nullptr)
    -> std::optional<decltype(call())> {
  using Result = decltype(call());
  auto promise = std::make_shared<std::promise<Result>>();
  std::future<Result> result = promise->get_future();
  std::thread([promise, call = std::move(call)]() mutable {
    try {
      promise->set_value(call());
    } catch (...) {
      promise->set_exception(std::current_exception());
    }
  }).detach();
  const auto deadline = std::chrono::steady_clock::now() + limit;
  constexpr std::chrono::milliseconds kSlice{50};
  while (std::chrono::steady_clock::now() < deadline) {
    const auto left = deadline - std::chrono::steady_clock::now();
    const auto slice = stop ? std::min<std::chrono::steady_clock::duration>(left, kSlice) : left;
    if (result.wait_for(slice) == std::future_status::ready) return result.get();
    if (stop && stop()) break;
  }
  return std::nullopt;
}

}
