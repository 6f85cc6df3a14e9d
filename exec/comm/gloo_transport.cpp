// One ProcessGroupGloo per group, of which only send() and recv() are used: bytes move as tensors made over the
// caller's memory. Receives are posted before sends: with sends first, Gloo serialises the two directions of a pair for
// messages above the socket buffer. Gloo's headers are Debian's, its code is inside LibTorch: this file must never
// define, derive from or lay out a Gloo type (the test GlooSymbols holds that). After a failure or a timeout Gloo
// closes every pair of the group: the group is over.
#include "exec/comm/gloo_transport.h"

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <atomic>
#include <mutex>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>
#define USE_C10D_GLOO  // else the header is empty
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "exec/comm/c10d_store.h"
#include "exec/comm/sockets.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

constexpr int kTag = 0;  // pairs keep the order of their messages

at::Tensor bytes_of(const void* data, std::size_t bytes) {
  return at::from_blob(
      const_cast<void*>(data), {static_cast<std::int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte));
}

class GlooTransport : public Transport {
 public:
  GlooTransport(GlooGroup group, c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo)
      : group_(std::move(group)), gloo_(std::move(gloo)) {}

  int index() const override { return group_.index; }
  int size() const override { return static_cast<int>(group_.ranks.size()); }

  void exchange(std::span<const Outgoing> sends, std::span<const Incoming> receives) override {
    std::vector<Pending> pending;
    pending.reserve(sends.size() + receives.size());
    for (const Incoming& receive : receives) {
      if (receive.bytes == 0) continue;
      guarded(receive.peer, [&] {
        std::vector<at::Tensor> tensors = {bytes_of(receive.data, receive.bytes)};
        pending.push_back({receive.peer, gloo_->recv(tensors, receive.peer, kTag)});
      });
    }
    for (const Outgoing& send : sends) {
      if (send.bytes == 0) continue;
      guarded(send.peer, [&] {
        std::vector<at::Tensor> tensors = {bytes_of(send.data, send.bytes)};
        pending.push_back({send.peer, gloo_->send(tensors, send.peer, kTag)});
      });
    }
    for (const Pending& one : pending) guarded(one.peer, [&] { wait(one.work); });
  }

  void abort() override {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    if (waiting_) waiting_->abort();
  }

 private:
  struct Pending {
    int peer;
    c10::intrusive_ptr<c10d::Work> work;
  };

  void wait(const c10::intrusive_ptr<c10d::Work>& work) {
    {
      const std::lock_guard lock(mutex_);
      if (aborted_) return;  // guarded() says so
      waiting_ = work;
    }
    const auto forget = [this] {
      const std::lock_guard lock(mutex_);
      waiting_.reset();
    };
    try {
      work->wait(group_.timeout);
    } catch (...) {
      forget();
      throw;
    }
    forget();
  }

  void guarded(int peer, auto call) {
    if (aborted_) throw PeerFailure(-1, "the group was told to stop");
    try {
      call();
    } catch (const std::exception& error) {
      if (!aborted_) throw_failure(peer, first_line(error));
    }
    if (aborted_) throw PeerFailure(-1, "the group was told to stop");
  }

  [[noreturn]] void throw_failure(int peer, const std::string& why) const {
    const int rank = group_.ranks[at(peer)];
    if (contains(why, "imed out") || contains(why, "imeout")) {
      throw PeerFailure(
          rank, fmt::format("rank {} did not answer within {} s", rank, as_double(group_.timeout.count()) / 1000));
    }
    throw PeerFailure(rank, fmt::format("rank {} closed its connection", rank));
  }

  GlooGroup group_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  std::mutex mutex_;
  c10::intrusive_ptr<c10d::Work> waiting_;
  std::atomic<bool> aborted_ = false;
};

}

std::unique_ptr<Transport> connect_gloo(const std::shared_ptr<JobStore>& store, const GlooGroup& group) {
  try {
    auto options = c10d::ProcessGroupGloo::Options::create(group.connect_timeout);
    options->threads = 1;  // they run collectives, of which there are none
    options->devices = {is_interface(group.address) ? c10d::ProcessGroupGloo::createDeviceForInterface(group.address)
                                                    : c10d::ProcessGroupGloo::createDeviceForHostname(group.address)};
    auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<c10d::PrefixStore>(group.key, store->connection().store), group.index,
        static_cast<int>(group.ranks.size()), std::move(options));
    gloo->setTimeout(group.timeout);
    return std::make_unique<GlooTransport>(group, std::move(gloo));
  } catch (const std::exception& error) {
    throw Error(ExitCode::kLaunchFailure, "group {}: no connection through {}: {}", group.key, group.address,
        first_line(error));
  }
}

}
