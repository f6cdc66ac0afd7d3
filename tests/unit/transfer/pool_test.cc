// Which connections the pool keeps while they rest, and which it closes.
#include "transfer/tcp/pool.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <memory>
#include <utility>
#include <vector>

namespace mooncake::transfer {
namespace {

constexpr uint64_t kStartMs = 1'000'000;

// The other ends of connections that were put into a pool.
class Ends {
 public:
  std::unique_ptr<Connection> Connect() {
    std::array<int, 2> pair = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()), 0);
    auto connection = std::make_unique<Connection>();
    connection->fd = UniqueFd(pair[0]);
    others_.emplace_back(pair[1]);
    return connection;
  }
  size_t open() const {
    size_t count = 0;
    for (const UniqueFd& other : others_) {
      char byte = 0;
      count += recv(other.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 0 ? 1 : 0;
    }
    return count;
  }

 private:
  std::vector<UniqueFd> others_;
};

TEST(ConnectionPool, ClosesWhatRestedTooLongAmidWhatIsUsed) {
  Ends ends;
  ConnectionPool pool;
  std::vector<std::unique_ptr<Connection>> burst;
  for (int i = 0; i < 8; ++i) burst.push_back(ends.Connect());
  for (auto& connection : burst) pool.Put("peer", std::move(connection), kStartMs);
  pool.Put("quiet", ends.Connect(), kStartMs);
  EXPECT_EQ(ends.open(), 9u);
  // One call at a time from now on: it takes the same connection again and again.
  constexpr uint64_t kStepMs = 10'000;
  for (uint64_t now = kStartMs; now < kStartMs + 3 * ConnectionPool::kIdleMs; now += kStepMs) {
    auto connection = pool.Take("peer", now);
    ASSERT_NE(connection, nullptr);
    pool.Put("peer", std::move(connection), now);
  }
  EXPECT_EQ(ends.open(), 1u);
  // And that one too when nobody calls, as the owner of the pool sweeps it.
  pool.Sweep(kStartMs + 5 * ConnectionPool::kIdleMs);
  EXPECT_EQ(ends.open(), 0u);
  EXPECT_EQ(pool.Take("peer", kStartMs + 5 * ConnectionPool::kIdleMs), nullptr);
}

TEST(ConnectionPool, KeepsABoundedNumberForAPeer) {
  Ends ends;
  ConnectionPool pool;
  for (size_t i = 0; i < ConnectionPool::kIdlePerPeerMax + 10; ++i) {
    pool.Put("peer", ends.Connect(), kStartMs);
  }
  EXPECT_EQ(ends.open(), ConnectionPool::kIdlePerPeerMax);
}

TEST(ConnectionPool, HandsOutNoneWhosePeerHasLeft) {
  Ends ends;
  ConnectionPool pool;
  for (int i = 0; i < 3; ++i) pool.Put("peer", ends.Connect(), kStartMs);
  ends = Ends();
  EXPECT_EQ(pool.Take("peer", kStartMs + 10 * ConnectionPool::kTrustedIdleMs), nullptr);
}

}  // namespace
}  // namespace mooncake::transfer
