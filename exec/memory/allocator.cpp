// Free blocks are kept twice, by address (to merge) and by size (best fit; among equals the lowest
// address, so that the same requests give the same addresses). The range grows at its end.
#include "exec/memory/allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/DeviceType.h>
#include <sys/mman.h>

#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <unordered_map>
#include <utility>

#include "sim/graph/layers/layer_program.h"

namespace foreshard {
namespace {

thread_local MemoryAccount* account_of_thread = nullptr;

class BlockAllocator final : public c10::Allocator {
 public:
  BlockAllocator() {
    // Address space only; pages come when they are touched.
    void* range = mmap(nullptr, kRange, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) throw std::bad_alloc();
    base_ = static_cast<char*>(range);
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, c10::Device(c10::DeviceType::CPU)};
    void* block = take(at(allocated_size(static_cast<std::int64_t>(bytes)).count()));
    return {block, block, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* target, const void* source, std::size_t count) const override {
    std::memcpy(target, source, count);
  }

  static BlockAllocator& instance() {
    static auto* const allocator = new BlockAllocator;  // outlives every tensor
    return *allocator;
  }

 private:
  static constexpr std::size_t kRange = std::size_t{1} << 42;

  struct Block {
    std::size_t bytes = 0;
    MemoryAccount* account = nullptr;
  };

  static void release(void* block) {
    if (block != nullptr) instance().give_back(static_cast<char*>(block));
  }

  void* take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    char* place = nullptr;
    const auto found = by_size_.lower_bound({bytes, nullptr});
    if (found == by_size_.end()) {
      // A free block at the end grows instead of staying behind as a hole.
      std::size_t extends = 0;
      if (!by_address_.empty()) {
        const auto last = std::prev(by_address_.end());
        if (last->first + last->second == base_ + end_) {
          extends = last->second;
          by_size_.erase({last->second, last->first});
          by_address_.erase(last);
        }
      }
      if (end_ - extends + bytes > kRange) throw std::bad_alloc();
      place = base_ + end_ - extends;
      end_ += bytes - extends;
    } else {
      place = found->second;
      const std::size_t whole = found->first;
      by_size_.erase(found);
      by_address_.erase(place);
      if (whole > bytes) add_free(place + bytes, whole - bytes);
    }
    used_[place] = {bytes, account_of_thread};
    if (account_of_thread != nullptr) {
      account_of_thread->now += static_cast<std::int64_t>(bytes);
      account_of_thread->peak = std::max(account_of_thread->peak, account_of_thread->now);
    }
    return place;
  }

  void give_back(char* place) {
    const std::lock_guard lock(mutex_);
    const auto found = used_.find(place);
    std::size_t bytes = found->second.bytes;
    if (found->second.account != nullptr) found->second.account->now -= static_cast<std::int64_t>(bytes);
    used_.erase(found);
    auto after = by_address_.lower_bound(place);
    if (after != by_address_.end() && place + bytes == after->first) {
      bytes += after->second;
      by_size_.erase({after->second, after->first});
      after = by_address_.erase(after);
    }
    if (after != by_address_.begin()) {
      const auto before = std::prev(after);
      if (before->first + before->second == place) {
        place = before->first;
        bytes += before->second;
        by_size_.erase({before->second, before->first});
        by_address_.erase(before);
      }
    }
    add_free(place, bytes);
  }

  void add_free(char* place, std::size_t bytes) {
    by_address_[place] = bytes;
    by_size_.insert({bytes, place});
  }

  std::mutex mutex_;
  char* base_ = nullptr;
  std::size_t end_ = 0;
  std::map<char*, std::size_t> by_address_;
  std::set<std::pair<std::size_t, char*>> by_size_;
  std::unordered_map<char*, Block> used_;
};

}

void install_allocator() {
  static const bool done = [] {
    c10::SetAllocator(c10::DeviceType::CPU, &BlockAllocator::instance(), 255);
    return true;
  }();
  static_cast<void>(done);
}

MemoryAccount* current_account() { return account_of_thread; }

AccountScope::AccountScope(MemoryAccount* account) : before_(std::exchange(account_of_thread, account)) {}
AccountScope::~AccountScope() { account_of_thread = before_; }

}
