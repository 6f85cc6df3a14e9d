// The allocator of the engine's tensors: accounts to the byte, blocks that are used again, and
// neighbours that become one.
#include "exec/memory/allocator.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>
#include <vector>

namespace foreshard {
namespace {

at::Tensor bytes(std::int64_t count) { return at::empty({count}, at::kByte); }

class AllocatorTest : public testing::Test {
 protected:
  AllocatorTest() { install_allocator(); }
  MemoryAccount account_;
};

TEST_F(AllocatorTest, CountsBlocksOf512Bytes) {
  const AccountScope scope(&account_);
  {
    const at::Tensor a = bytes(1);
    EXPECT_EQ(account_.now, 512);
    const at::Tensor b = bytes(513);
    EXPECT_EQ(account_.now, 512 + 1024);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(b.const_data_ptr()) % 512, 0U);
    const at::Tensor view = b.narrow(0, 100, 10);  // the same block
    const at::Tensor none = bytes(0);
    EXPECT_EQ(account_.now, 1536);
  }
  EXPECT_EQ(account_.now, 0);
  EXPECT_EQ(account_.peak, 1536);
}

TEST_F(AllocatorTest, AccountsNestAndEnd) {
  MemoryAccount inner;
  const AccountScope scope(&account_);
  const at::Tensor a = bytes(512);
  {
    const AccountScope nested(&inner);
    const at::Tensor b = bytes(1024);
    EXPECT_EQ(inner.now, 1024);
    const AccountScope nobody(nullptr);
    const at::Tensor c = bytes(2048);
    EXPECT_EQ(inner.now, 1024);
  }
  EXPECT_EQ(inner.now, 0);
  EXPECT_EQ(account_.now, 512);
}

TEST_F(AllocatorTest, ABlockRemembersWhoseItIs) {
  at::Tensor a;
  std::thread([&] {
    const AccountScope scope(&account_);
    a = bytes(4096);
  }).join();
  EXPECT_EQ(account_.now, 4096);
  std::thread([&] { a.reset(); }).join();
  EXPECT_EQ(account_.now, 0);
}

TEST_F(AllocatorTest, ARepeatedStepTouchesTheSameAddresses) {
  const auto step = [] {
    std::vector<const void*> places;
    const at::Tensor a = bytes(10'000);
    at::Tensor b = bytes(70'000);
    places.push_back(a.const_data_ptr());
    places.push_back(b.const_data_ptr());
    b.reset();
    const at::Tensor c = bytes(30'000);
    const at::Tensor d = bytes(30'000);
    places.push_back(c.const_data_ptr());
    places.push_back(d.const_data_ptr());
    return places;
  };
  const auto first = step();
  EXPECT_EQ(step(), first);
  EXPECT_EQ(step(), first);
}

// Three neighbours of 64 KiB, freed in any order, hold one of 192 KiB in the same place.
TEST_F(AllocatorTest, FreeNeighboursBecomeOne) {
  constexpr std::int64_t kPiece = 65'536;
  for (const auto& order :
      std::vector<std::vector<std::size_t>>{{0, 1, 2}, {2, 1, 0}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}}) {
    at::Tensor whole = bytes(3 * kPiece);
    const auto* place = static_cast<const char*>(whole.const_data_ptr());
    whole.reset();
    std::vector<at::Tensor> pieces;
    for (int i = 0; i < 3; ++i) pieces.push_back(bytes(kPiece));
    for (const std::size_t i : order) pieces[i].reset();
    EXPECT_EQ(bytes(3 * kPiece).const_data_ptr(), place);
  }
}

// Nobody's bytes change while others come and go.
TEST_F(AllocatorTest, BlocksDoNotOverlap) {
  const AccountScope scope(&account_);
  std::mt19937 random(7);
  std::vector<at::Tensor> held(40);
  for (int i = 0; i < 4000; ++i) {
    const std::size_t place = random() % held.size();
    at::Tensor& tensor = held[place];
    if (tensor.defined()) {
      ASSERT_TRUE(tensor.eq(static_cast<int>(place)).all().item<bool>()) << i;
      tensor.reset();
    } else {
      tensor = bytes(1 + static_cast<std::int64_t>(random() % 20'000));
      tensor.fill_(static_cast<int>(place));
    }
  }
  held.clear();
  EXPECT_EQ(account_.now, 0);
}

}
}
