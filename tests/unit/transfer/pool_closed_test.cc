// Idle connections whose peer has gone: their descriptors go soon, not when they are old.
#include <fcntl.h>
#include <sys/socket.h>

#include "runtime/real_runtime.h"
#include "transfer/tcp/pool.h"
#include "transfer/tcp/tcp_transport.h"
#include "unit/transfer/contract.h"
#include "unit/transfer/test_service.h"

namespace mooncake::transfer {
namespace {

constexpr uint64_t kStartMs = 1'000'000;
constexpr uint64_t kNextSweepMs = kStartMs + ConnectionPool::kSweepEveryMs;

// A connection in the pool, and the peer's side of it.
struct Pooled {
  int fd;
  UniqueFd peer;
  bool IsOpen() const { return ::fcntl(fd, F_GETFD) != -1; }
};

class PoolClosedTest : public testing::Test {
 protected:
  void SetUp() override { pool_.Sweep(kStartMs); }  // The next one is due in kSweepEveryMs.

  Pooled Add(const std::string& endpoint) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    auto connection = std::make_unique<Connection>();
    connection->fd = UniqueFd(ends[0]);
    pool_.Put(endpoint, std::move(connection), kStartMs);
    return {ends[0], UniqueFd(ends[1])};
  }

  ConnectionPool pool_;
};

TEST_F(PoolClosedTest, ClosesWhatItsPeerHasClosedAtTheNextSweep) {
  std::vector<Pooled> gone;
  for (int i = 0; i < 10; ++i) gone.push_back(Add("a:" + std::to_string(i / 2)));
  for (Pooled& pooled : gone) pooled.peer.Reset();
  pool_.Sweep(kNextSweepMs - 1);
  for (const Pooled& pooled : gone) EXPECT_TRUE(pooled.IsOpen());
  pool_.Sweep(kNextSweepMs);
  for (const Pooled& pooled : gone) EXPECT_FALSE(pooled.IsOpen());
}

TEST_F(PoolClosedTest, SweepsWhenAConnectionIsGivenBack) {
  Pooled gone = Add("a:1");
  gone.peer.Reset();
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd other(ends[1]);
  auto connection = std::make_unique<Connection>();
  connection->fd = UniqueFd(ends[0]);
  pool_.Put("b:1", std::move(connection), kNextSweepMs);
  EXPECT_FALSE(gone.IsOpen());
}

TEST_F(PoolClosedTest, KeepsWhatIsAliveAndInOrder) {
  const Pooled first = Add("a:1");
  Pooled gone = Add("a:1");
  const Pooled last = Add("a:1");
  gone.peer.Reset();
  pool_.Sweep(kNextSweepMs);
  EXPECT_FALSE(gone.IsOpen());
  EXPECT_EQ(pool_.Take("a:1", kNextSweepMs)->fd.get(), last.fd);
  EXPECT_EQ(pool_.Take("a:1", kNextSweepMs)->fd.get(), first.fd);
  EXPECT_EQ(pool_.Take("a:1", kNextSweepMs), nullptr);
}

TEST_F(PoolClosedTest, ClosesWhatSaysSomethingUnasked) {
  const Pooled odd = Add("a:1");
  ASSERT_EQ(::send(odd.peer.get(), "x", 1, 0), 1);
  pool_.Sweep(kNextSweepMs);
  EXPECT_FALSE(odd.IsOpen());
}

TEST_F(PoolClosedTest, HasRoomAgainForWhatWasClosed) {
  for (size_t i = 0; i < ConnectionPool::kIdlePerPeerMax; ++i)
    Add("a:1");  // The peer goes at once.
  EXPECT_FALSE(Add("a:1").IsOpen());
  pool_.Sweep(kNextSweepMs);
  EXPECT_TRUE(Add("a:1").IsOpen());
}

TEST_F(PoolClosedTest, AListeningTransportLetsGoOfAPeerThatLeftWithoutFurtherCalls) {
  runtime::RealRuntime runtime;
  TestService service(runtime);
  TcpTransport client(runtime, {});
  ASSERT_TRUE(client.Listen("127.0.0.1", 0, &service).ok());
  const size_t before = OpenDescriptors();
  {
    TcpTransport server(runtime, {});
    TestCallSpec spec(server.Listen("127.0.0.1", 0, &service).value(), "echo", 100);
    ASSERT_TRUE(CallOne(client, spec).status.ok());
  }
  for (int i = 0; i < 2'000 && OpenDescriptors() != before; ++i) runtime.SleepMs(5);
  EXPECT_EQ(OpenDescriptors(), before);
}

}  // namespace
}  // namespace mooncake::transfer
